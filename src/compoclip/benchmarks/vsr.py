"""VSR: is this statement about where things are true of the photo? (Liu et al., TACL 2023).

Read from `<root>/vsr/{random,zeroshot}_{dev,test}.jsonl`, or as the repository keeps them
`{random,zeroshot}/{dev,test}.jsonl` (option `annotations`: another folder), one object a line:

    {"image": "000000451431.jpg", "image_link": "http://.../train2017/000000451431.jpg",
     "caption": "The person is inside the refrigerator.", "label": 1, "relation": "inside"}

(other keys are ignored). Photos: `<root>/coco/train2017` or `val2017`, as the link says (argument
`images`: one folder with all of them).

A cosine is no yes or no, so the published accuracies of models with a trained head are not
comparable. Headline `auc`: area under the ROC curve of the cosine, mean over the two test splits.
`balanced_accuracy`: mean accuracy on true and on false statements at the threshold that is best on
the split's dev file. `relations`: plain mean of the areas of the relations that have true and false
statements; of these, the ones with at least 20 statements in a split are aggregates of their own.
Chance is 1/2; for plain accuracy it is the share of the more frequent kind of statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, Meta
from compoclip.benchmarks.reader import CaseReader, Loading, keep
from compoclip.benchmarks.sources import RemoteFile, repository
from compoclip.errors import CompoclipError, shown

_SPLITS = ("random", "zeroshot")
_COCO = ("train2017", "val2017")
_LEAST = 20
_FILES = {  # bytes, checksum
    "random_dev": (338_049, "69f9238dfd969d86e37f9442b128106d"),
    "random_test": (674_712, "bec23764abc5a9aaf0cc81e60fc5608b"),
    "zeroshot_dev": (107_245, "a961e4aa48c6de7bf740cca317968b28"),
    "zeroshot_test": (380_380, "caad8683113358892d407c002c36de73"),
}
_REPOSITORY = repository(
    "cambridgeltl/visual-spatial-reasoning", "b27a0af0ee1462d2b6b92c8c83e869d9254a241a"
)
META = Meta(
    id="vsr",
    title="Visual Spatial Reasoning",
    citation="Liu et al., Visual Spatial Reasoning, TACL 2023",
    source="repository cambridgeltl/visual-spatial-reasoning, folder data; photos: COCO 2017",
    licence="Apache-2.0",
    access="open",
    files=tuple(f"vsr/{name}.jsonl" for name in _FILES),
    elsewhere={f"vsr/{name}.jsonl": f"vsr/{name.replace('_', '/')}.jsonl" for name in _FILES},
    images=tuple(f"coco/{folder}" for folder in _COCO),
    parts=_SPLITS,
    chance={"": 1 / 2},
    skills=dict.fromkeys(_SPLITS, "spatial"),
    expected={"random": 2195, "random_dev": 1097, "zeroshot": 1222, "zeroshot_dev": 340},
    hashes={f"vsr/{name}.jsonl": known for name, (_, known) in _FILES.items()},
    remote=tuple(
        RemoteFile(
            f"vsr/{name}.jsonl",
            f"{_REPOSITORY}/data/splits/{name.replace('_', '/')}.jsonl",
            size,
        )
        for name, (size, _) in _FILES.items()
    ),
)


def _cases(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    """Test statements, and the dev statements that set the thresholds."""
    folder = annotations or data.root / "vsr"
    data.tuned_on = {split: f"{split}_dev" for split in data.parts}
    data.expected = keep(META.expected, [name for both in data.tuned_on.items() for name in both])
    for split, dev in data.tuned_on.items():
        yield from _statements(data, split, _found(folder, split, "test"))
        yield from _statements(data, dev, _found(folder, split, "dev"))


def _found(folder: Path, split: str, part: str) -> Path:
    nested = folder / split / f"{part}.jsonl"
    return nested if nested.is_file() else folder / f"{split}_{part}.jsonl"


def _statements(data: Loading, part: str, path: Path) -> Iterator[Case]:
    seen: dict[object, str] = {}
    kinds = set()
    for line, where, row in data.lines(
        part, path, "put it there or select the split you have, e.g. vsr:zeroshot"
    ):
        label = files.field(row, "label", where)
        if isinstance(label, bool) or label not in (0, 1):
            raise CompoclipError(f"{where}: 'label' must be 0 or 1, not {shown(label)}")
        name, caption = files.texts(row, ("image", "caption"), where)
        photos = data.images or data.root / "coco" / _coco_folder(row, where)
        files.once((name, caption, label), where, seen)
        kinds.add(label)
        yield Case(
            id=f"{part}/{line}",
            form=Form.BINARY,
            images=(files.photo(photos, row, "image", where),),
            texts=(caption,),
            subtask=part,
            truth=int(label),
            labels={
                "label": "true" if label else "false",
                "relation": files.text(row, "relation", where),
            },
        )
    if kinds != {0, 1}:
        raise CompoclipError(
            f"{path}: holds no true or no false statements; fetch the official file again"
        )


def _coco_folder(row: dict[str, object], where: str) -> str:
    """The folder of COCO that the photo's address names."""
    link = PurePosixPath(files.text(row, "image_link", where))
    if link.parent.name not in _COCO:
        raise CompoclipError(
            f"{where}: 'image_link' {str(link)!r:.80} names neither {' nor '.join(_COCO)}; give "
            "the folder of the photos as images"
        )
    return link.parent.name


def _rules(data: Loading) -> dict[str, Aggregate]:
    kept = data.parts
    balanced = [Aggregate((part,), macro_by="label", metric="accuracy") for part in kept]
    rules = {"auc": Aggregate(kept), "balanced_accuracy": Aggregate(tuple(balanced))}
    counts: dict[str, Counter[str]] = {part: Counter() for part in (*kept, *data.tuned_on.values())}
    for case in data.cases:
        counts[case.subtask][case.labels["relation"]] += 1
    kinds = {(case.subtask, case.labels["relation"], case.truth) for case in data.cases}
    both = {
        part: [name for name in counts[part] if {(part, name, 0), (part, name, 1)} <= kinds]
        for part in kept
    }
    if all(both.values()):
        means = [Aggregate((part,), macro_by="relation") for part in kept]
        rules["relations"] = Aggregate(tuple(means))
    for part in kept:
        for name in sorted(both[part]):
            if counts[part][name] >= _LEAST:
                others = frozenset(counts[part]) - {name}
                rules[f"{part}: {name}"] = Aggregate((part,), macro_by="relation", exclude=others)
    return rules


VSR = CaseReader(META, _cases, _rules, "auc")
