"""Small benchmarks of the world in the official on-disk formats: one file per benchmark.

Every exporter has `build(spec) -> list of Part`: what the files hold and which scenes they show, a
function of the spec alone. `suite.write_suite` runs them all and writes what they made.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from compoclip.errors import UsageError, closest

EXPORTERS: Mapping[str, str] = MappingProxyType(
    {
        "sugarcrepe": "sugarcrepe:build",
        "sugarcrepe_pp": "sugarcrepe:build",
        "sugarcrepe_pp_tot": "sugarcrepe:build",
        "retrieval": "retrieval:build",
        "confusable": "confusable:build",
        "winoground": "pairs:build",
        "foils": "pairs:build",
        "hard_positives": "aro:hard_positives_build",
        "aro": "aro:build",
        "zero_shot": "zero_shot:build",
    }
)
"""Benchmark -> the exporter that makes it, "module:function", the slowest first. Every skill is
tested by one: what no official format asks for is in `foils`, one file of captions and foils a
task."""


def require_made(names: Iterable[str], made: Collection[str] = EXPORTERS) -> None:
    """Raise UsageError for a benchmark that none of the exporters makes."""
    for name in names:
        if name not in made:
            raise UsageError(f"world: no benchmark {name!r} is made here; {closest(name, made)}")
