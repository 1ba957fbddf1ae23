"""The names of benchmarks and of suites of them, known without their readers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from compoclip import plugins
from compoclip.benchmarks.sources import document
from compoclip.data.prompts import IMAGENET
from compoclip.errors import UsageError, closest

ALL = "all"
"""Target for everything below the data root."""


def benchmark_names() -> tuple[str, ...]:
    """Return the sorted names of all benchmarks; installed ones are not imported."""
    official = [name for name in document() if name[0] != "_"]
    return tuple(sorted({*official, *plugins.installed("benchmarks")}))


def unknown(name: str) -> UsageError:
    """Return the error of a name that no benchmark has, with the closest one."""
    return UsageError(f"no benchmark {name!r}; {closest(name, benchmark_names())}")


def require_name(target: str) -> None:
    """Raise UsageError for a target, as `targets` describes them, whose name no benchmark has.

    One that may be a file or folder is let through.
    """
    name = re.split("[,:]", target, maxsplit=1)[0]
    listed = name in (ALL, *SUITES, *benchmark_names())
    if not (listed or set("./=~") & set(name) or os.path.exists(name)) and name.isprintable():
        raise unknown(name)


# --- Benchmarks that the literature reports together, by one name. ---

_SETS = document()["zero_shot"]["sets"]
_ELEVATER = tuple(f"zero_shot:{name}" for name in _SETS if not name.startswith("imagenet-"))
_IMAGENETS = tuple(f"zero_shot:{name}" for name in _SETS if name.startswith("imagenet-"))
_IMAGENET = f"zero_shot:{IMAGENET}"
SUITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "comp": tuple(document()["_suites"]["comp"]),
        "elevater": (*_ELEVATER, _IMAGENET),
        "elevater_20": _ELEVATER,
        "imagenet_shifts": tuple(name for name in _IMAGENETS if name != _IMAGENET),
        "retrieval_3": tuple(document()["_suites"]["retrieval_3"]),
    }
)
"""Suite -> names for `load_benchmark`. comp, retrieval_3: as in FSC-CLIP (Oh et al., EMNLP
2024); elevater: the 21 sets of its zero-shot mean, elevater_20 without ImageNet-1K. The average of
vl_compo itself is over twelve: comp without spec, with colorswap and mmvp_vlm."""


def without_suites(names: Sequence[str]) -> list[str]:
    """Return names of benchmarks, with those of a suite for its name."""
    return [benchmark for name in names for benchmark in SUITES.get(name, (name,))]
