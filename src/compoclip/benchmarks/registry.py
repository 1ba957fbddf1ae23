"""Benchmarks by name: every module of this package that has `META` and `load` is one.

Adding a benchmark is adding one such file. Other packages add theirs through the entry-point group
"compoclip.benchmarks", each entry naming a module with the same two members.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from compoclip import benchmarks as package
from compoclip.benchmarks import (
    cola,
    hard_positives,
    sugarcrepe,
    sugarcrepe_pp,
    svo_probes,
    valse,
    vl_checklist,
    vsr,
)
from compoclip.benchmarks.case import Benchmark, Meta
from compoclip.benchmarks.edition import as_edition, read_edition
from compoclip.benchmarks.files import close
from compoclip.benchmarks.zero_shot import ELEVATER, IMAGENET, SHIFTS
from compoclip.errors import CompoclipError, UsageError

GROUP = "compoclip.benchmarks"


def _is_benchmark(module: ModuleType) -> bool:
    return isinstance(getattr(module, "META", None), Meta) and callable(
        getattr(module, "load", None)
    )


def _own() -> dict[str, ModuleType]:
    names = [
        info.name for info in pkgutil.iter_modules(package.__path__) if info.name != "registry"
    ]
    modules = {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if _is_benchmark(module)}


def _foreign() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def benchmark_names() -> tuple[str, ...]:
    """Sorted names of all benchmarks, own and installed; installed ones are not imported."""
    return tuple(sorted({*_own(), *_foreign()}))


def meta(name: str) -> Meta:
    """What is known about a benchmark without its files. Raises UsageError for unknown names."""
    found: Meta = _module(name).META
    return found


def _module(name: str) -> ModuleType:
    own = _own()
    if name in own:
        return own[name]
    point = _foreign().get(name)
    if point is None:
        raise UsageError(f"no benchmark {name!r}; {close(name, benchmark_names())}")
    try:
        module = point.load()
    except Exception as error:  # whatever a foreign module raises, the user must learn whose it is
        raise CompoclipError(
            f"benchmark {name!r} of entry point {point.value!r} cannot be imported: {error}; "
            "update or uninstall that package"
        ) from error
    if not isinstance(module, ModuleType) or not _is_benchmark(module):
        raise CompoclipError(
            f"entry point {point.value!r} of benchmark {name!r} must be a module with META and load"
        )
    return module


def load_benchmark(spec: str, root: Path, images: Path | None = None, **options: Any) -> Benchmark:
    """Load the benchmark that `spec` names from the data root.

    spec: "name" or "name:part[,part]", parts being sub-tasks, patterns of them ("swap_*"), or, for
    a family such as "retrieval:coco", the one set to load. images: where the photos lie when not
    in the default layout. options: further arguments of the benchmark's own `load`. A root that
    holds other than the official items (see `edition`) gives the benchmark its own name.
    Raises UsageError for unknown names, parts or options, CompoclipError for bad files.
    """
    name, colon, tail = spec.partition(":")
    module = _module(name)
    parts = tuple(part.strip() for part in tail.split(",")) if colon else ()
    if colon and not all(parts):
        raise UsageError(f"{spec!r}: expected name:part[,part]; parts: {_parts(module.META)}")
    if module.META.family and len(parts) != 1:
        raise UsageError(
            f"{spec!r}: {name} is a family, name one set as {name}:SET; sets: {_parts(module.META)}"
        )
    known = option_types(name)
    for option in options:
        if option not in known:
            raise UsageError(f"benchmark {name} has no option {option!r}; {close(option, known)}")
    loaded: Benchmark = module.load(root, images, subtasks=parts, **options)
    edition = read_edition(root)
    return loaded if edition is None else as_edition(loaded, edition)


def option_types(name: str) -> dict[str, str]:
    """Options of a benchmark's `load` -> their annotations, e.g. {"annotations": "Path | None"}.

    Raises UsageError for unknown names.
    """
    return {
        key: str(parameter.annotation)
        for key, parameter in inspect.signature(_module(name).load).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and key != "subtasks"
    }


def _parts(found: Meta) -> str:
    return ", ".join(found.parts)


# --- Benchmarks that the literature reports together, by one name. ---

SUITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "comp": (
            "aro",
            "crepe_prod",
            "eqben",
            "imagecode",
            "sugarcrepe",
            "svo_probes",
            "valse",
            "vl_checklist",
            "whatsup",
            "winoground",
            "spec",
        ),
        "elevater": tuple(f"zero_shot:{name}" for name in (*ELEVATER, *IMAGENET)),
        "elevater_20": tuple(f"zero_shot:{name}" for name in ELEVATER),
        "imagenet_shifts": tuple(f"zero_shot:{name}" for name in SHIFTS),
        "retrieval_3": ("retrieval:coco", "retrieval:flickr30k", "retrieval:coco_cf"),
    }
)
"""Suite -> what `load_benchmark` is asked for. comp, retrieval_3: of FSC-CLIP (Oh et al., EMNLP
2024); elevater: the 21 sets of its zero-shot mean, elevater_20 without ImageNet-1K. The average of
vl_compo itself is over twelve: comp without spec, with colorswap and mmvp_vlm."""


# --- Where official files that anybody may fetch come from: one table for all benchmarks. ---
#
# Annotations of repositories are named at the commit whose bytes were checked (`Meta.hashes`), or
# at the newest one where none was. Where neither a hash nor an md5 is known, a fetched file is
# checked for its kind alone and said to be not verified. Nothing here is fetched unless `compoclip
# data fetch` is told to.

_RAW = "https://raw.githubusercontent.com"
_COCO = "http://images.cocodataset.org/zips"
_BLIP = "https://storage.googleapis.com/sfr-vision-language-research/datasets"
_GENOME = "https://cs.stanford.edu/people/rak248/VG_100K_2"
NEWEST = "HEAD"


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch.

    target: the file below the data root that it becomes or, for an archive, the folder that it is
    unpacked into (a folder that holds the whole archive is dropped). size: bytes, 0 where not
    known. md5: of the file as published, "" where not known. archive: ".zip" or ".tar" file.
    keys: what each row of the file must have, told where nothing else says that it is the right
    file.
    """

    target: str
    url: str
    size: int = 0
    md5: str = ""
    archive: bool = False
    keys: tuple[str, ...] = ()


def _repository(
    name: str,
    commit: str,
    places: dict[str, str],
    sizes: dict[str, int] | None = None,
    keys: tuple[str, ...] = (),
) -> list[RemoteFile]:
    """places: target -> path in the repository."""
    return [
        RemoteFile(
            target, f"{_RAW}/{name}/{commit}/{path}", (sizes or {}).get(target, 0), keys=keys
        )
        for target, path in places.items()
    ]


def _below(folder: str, files: tuple[str, ...], into: str) -> dict[str, str]:
    """Every file of `folder` (below the root) at the same place in the repository's `into`."""
    return {file: f"{into}/{file.removeprefix(f'{folder}/')}" for file in files}


_SUGARCREPE_SIZES = {
    "sugarcrepe/replace_obj.json": 361_126,
    "sugarcrepe/replace_att.json": 176_843,
    "sugarcrepe/replace_rel.json": 312_629,
    "sugarcrepe/swap_obj.json": 57_569,
    "sugarcrepe/swap_att.json": 154_665,
    "sugarcrepe/add_obj.json": 484_593,
    "sugarcrepe/add_att.json": 158_863,
    "sugarcrepe_pp/replace_obj.json": 456_601,
    "sugarcrepe_pp/replace_att.json": 226_275,
    "sugarcrepe_pp/replace_rel.json": 392_738,
    "sugarcrepe_pp/swap_obj.json": 74_611,
    "sugarcrepe_pp/swap_att.json": 198_206,
}
_VALSE_SIZES = {
    "valse/existence.json": 420_403,
    "valse/plurals.json": 1_097_122,
    "valse/counting-hard.json": 537_197,
    "valse/counting-small-quant.json": 534_996,
    "valse/counting-adversarial.json": 407_394,
    "valse/relations.json": 664_587,
    "valse/action-replacement.json": 664_129,
    "valse/actant-swap.json": 503_017,
    "valse/coreference-standard.json": 592_329,
    "valse/coreference-hard.json": 95_649,
    "valse/foil-it.json": 538_911,
}
_VSR_SIZES = {
    "vsr/random_dev.jsonl": 338_049,
    "vsr/random_test.jsonl": 674_712,
    "vsr/zeroshot_dev.jsonl": 107_245,
    "vsr/zeroshot_test.jsonl": 380_380,
}

_ANNOTATIONS = [
    *_repository(
        "RAIVNLab/sugar-crepe",
        "0047054b243992f0fad63d6f64f7544862daf846",
        _below("sugarcrepe", sugarcrepe.META.files, "data"),
        _SUGARCREPE_SIZES,
    ),
    *_repository(
        "Sri-Harsha/scpp",
        "c083bbf039a5ca215acaf25e7ee736d2ea6f3864",
        _below("sugarcrepe_pp", sugarcrepe_pp.META.files, "data"),
        _SUGARCREPE_SIZES,
    ),
    *_repository(
        "Heidelberg-NLP/VALSE",
        "2152d90d4aecd11f7f74cf03420abcb63efff9c5",
        _below("valse", valse.META.files, "data"),
        _VALSE_SIZES,
    ),
    *_repository(
        "cambridgeltl/visual-spatial-reasoning",
        "b27a0af0ee1462d2b6b92c8c83e869d9254a241a",
        {
            file: f"data/splits/{file.removeprefix('vsr/').replace('_', '/')}"
            for file in vsr.META.files
        },
        _VSR_SIZES,
    ),
    *_repository(
        "arijitray1993/COLA",
        "1fa52fba9cff4e6ffb7bfcf3550838748347273b",
        _below("cola", cola.META.files, "data"),
        dict.fromkeys(cola.META.files, 56_746),
    ),
    *_repository(
        "om-ai-lab/VL-CheckList",
        NEWEST,
        _below("vl_checklist/data", vl_checklist.META.files, "data"),
    ),
    *_repository(
        "amitakamath/hard_positives",
        NEWEST,
        {
            file: file.removeprefix("hard_positives/")
            for file in hard_positives.META.files
            if "vl_checklist" in file
        },
        keys=("image_id", "image_path", "true_caption", "false_caption"),
    ),
    *_repository(
        "McGill-NLP/imagecode",
        "15b993f545c6e659d80afa133c313f2b377e89f5",
        {"imagecode/valid_data.json": "data/valid_data.json"},
    ),
    *_repository(
        "google-deepmind/svo_probes",
        NEWEST,
        {"svo_probes/svo_probes.csv": "svo_probes.csv"},
        keys=svo_probes.COLUMNS,
    ),
    RemoteFile(
        "mmvp_vlm/Questions.csv",
        "https://huggingface.co/datasets/MMVP/MMVP_VLM/resolve/main/Questions.csv",
    ),
    RemoteFile("coco/coco_karpathy_test.json", f"{_BLIP}/coco_karpathy_test.json", 1_735_468),
    RemoteFile(
        "flickr30k/flickr30k_test.json",
        f"{_BLIP}/flickr30k_test.json",
        keys=("image", "caption"),
    ),
]
_PHOTOS = [
    RemoteFile(
        "coco/val2017",
        f"{_COCO}/val2017.zip",
        815_585_330,
        "442b8da7639aecaf257c1dceb8ba8c80",
        archive=True,
    ),
    RemoteFile(
        "coco/train2017",
        f"{_COCO}/train2017.zip",
        19_336_861_798,
        "cced6f7f71b7629ddf16f17bbcfab6b2",
        archive=True,
    ),
    RemoteFile(
        "coco/val2014",
        f"{_COCO}/val2014.zip",
        6_645_013_297,
        "a3d79f5ed8d289b7a7554ce06a5782b3",
        archive=True,
    ),
    RemoteFile(
        "coco/train2014",
        f"{_COCO}/train2014.zip",
        13_510_573_713,
        "0da8cfa0e090c266b78f30e2d2874f1a",
        archive=True,
    ),
    RemoteFile("vg/VG_100K", f"{_GENOME}/images.zip", archive=True),
    RemoteFile("vg/VG_100K_2", f"{_GENOME}/images2.zip", archive=True),
    RemoteFile("visual7w", "http://vision.stanford.edu/yukezhu/visual7w_images.zip", archive=True),
    RemoteFile(
        "swig",
        "https://swig-data-weights.s3.us-east-2.amazonaws.com/images_512.zip",
        archive=True,
    ),
    RemoteFile(
        "imagecode/image-sets",
        "https://zenodo.org/record/6518944/files/image-sets.zip",
        archive=True,
    ),
]

SOURCES = {source.target: source for source in (*_ANNOTATIONS, *_PHOTOS)}
"""Target below the data root -> its source."""


# --- What is known about every benchmark, and where its files can be had: `compoclip data ls`. ---


@dataclass(frozen=True)
class Entry:
    """A benchmark's facts (`Meta`) with the sources of those of its files that can be fetched.

    sources: target below the data root (a file or an image folder) -> its source.
    """

    meta: Meta
    sources: Mapping[str, RemoteFile]

    @property
    def items(self) -> int | None:
        """Items of the official files, None where not known or where each set has its own."""
        return None if self.meta.family else sum(self.meta.expected.values()) or None

    @property
    def size(self) -> int:
        """Bytes of all sources of known size, archives packed."""
        return sum(source.size for source in self.sources.values())

    @property
    def by_hand(self) -> tuple[str, ...]:
        """Files and folders that no source is known for."""
        return tuple(
            each for each in (*self.meta.files, *self.meta.images) if each not in self.sources
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        about = self.meta
        return {
            "id": about.id,
            "title": about.title,
            "citation": about.citation,
            "items": self.items,
            "expected": dict(about.expected),
            "parts": list(about.parts),
            "family": about.family,
            "requires": about.requires,
            "licence": about.licence,
            "status": about.status,
            "access": about.access,
            "source": about.source,
            "files": [self._place(file) for file in about.files],
            "archives": list(about.archives),
            "optional": list(about.optional),
            "images": [self._place(folder) for folder in about.images],
            "size": self.size,
        }

    def _place(self, target: str) -> dict[str, Any]:
        source = self.sources.get(target)
        return {
            "path": target,
            "blake2b": self.meta.hashes.get(target),
            "url": source.url if source else None,
            "size": (source.size or None) if source else None,
            "md5": (source.md5 or None) if source else None,
        }


def entry(name: str) -> Entry:
    """The entry of one benchmark. Raises UsageError for unknown names."""
    about = meta(name)
    places = (*about.files, *about.images)
    return Entry(about, {each: SOURCES[each] for each in places if each in SOURCES})


def catalogue() -> list[Entry]:
    """All benchmarks, sorted by name."""
    return [entry(name) for name in benchmark_names()]
