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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Benchmark, Case, Form, ImageRef, Meta
from compoclip.benchmarks.files import keep, of_cases, select
from compoclip.errors import CompoclipError

_SPLITS = ("random", "zeroshot")
_COCO = ("train2017", "val2017")
_LEAST = 20
META = Meta(
    id="vsr",
    title="Visual Spatial Reasoning",
    citation="Liu et al., Visual Spatial Reasoning, TACL 2023",
    source="repository cambridgeltl/visual-spatial-reasoning, folder data; photos: COCO 2017",
    licence="Apache-2.0",
    access="open",
    files=tuple(f"vsr/{split}_{part}.jsonl" for split in _SPLITS for part in ("dev", "test")),
    elsewhere={
        f"vsr/{split}_{part}.jsonl": f"vsr/{split}/{part}.jsonl"
        for split in _SPLITS
        for part in ("dev", "test")
    },
    images=tuple(f"coco/{folder}" for folder in _COCO),
    parts=_SPLITS,
    chance={"": 1 / 2},
    skills=dict.fromkeys(_SPLITS, "spatial"),
    expected={"random": 2195, "random_dev": 1097, "zeroshot": 1222, "zeroshot_dev": 340},
    hashes={
        "vsr/random_dev.jsonl": "69f9238dfd969d86e37f9442b128106d",
        "vsr/random_test.jsonl": "bec23764abc5a9aaf0cc81e60fc5608b",
        "vsr/zeroshot_dev.jsonl": "a961e4aa48c6de7bf740cca317968b28",
        "vsr/zeroshot_test.jsonl": "caad8683113358892d407c002c36de73",
    },
)


def load(
    root: Path,
    images: Path | None = None,
    *,
    subtasks: Sequence[str] = (),
    annotations: Path | None = None,
) -> Benchmark:
    """Read VSR as BINARY cases: test statements, and the dev statements that set the thresholds.

    Layout: see the module. Raises CompoclipError for absent or malformed files, UsageError for an
    unknown sub-task.
    """
    kept = select(META.id, META.parts, subtasks)
    folder = annotations or root / "vsr"
    paths = {
        name: _found(folder, split, part)
        for split in kept
        for name, part in ((split, "test"), (f"{split}_dev", "dev"))
    }
    cases = [case for name, path in paths.items() for case in _cases(path, name, images, root)]
    expected = keep(META.expected, tuple(paths))
    digest = files.data_hash(paths)
    made = of_cases(META, kept, cases, digest, _rules(kept, cases), "auc", expected=expected)
    return replace(made, tuned_on={split: f"{split}_dev" for split in kept})


def _found(folder: Path, split: str, part: str) -> Path:
    nested = folder / split / f"{part}.jsonl"
    return nested if nested.is_file() else folder / f"{split}_{part}.jsonl"


def _rules(kept: Sequence[str], cases: Sequence[Case]) -> dict[str, Aggregate]:
    """The named aggregates over the kept splits."""
    balanced = [Aggregate((part,), macro_by="label", metric="accuracy") for part in kept]
    rules = {"auc": Aggregate(tuple(kept)), "balanced_accuracy": Aggregate(tuple(balanced))}
    counts = {
        part: Counter(case.labels["relation"] for case in cases if case.subtask == part)
        for part in kept
    }
    kinds = {(case.subtask, case.labels["relation"], case.truth) for case in cases}
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


def _cases(path: Path, subtask: str, images: Path | None, root: Path) -> list[Case]:
    remedy = "put it there or select the split you have, e.g. vsr:zeroshot"
    cases: list[Case] = []
    seen: dict[object, str] = {}
    for line, row in files.read_jsonl(path, remedy):
        where = f"{path}: line {line}"
        label = files.field(row, "label", where)
        if isinstance(label, bool) or label not in (0, 1):
            raise CompoclipError(f"{where}: 'label' must be 0 or 1, not {label!r:.40}")
        name = files.text(row, "image", where)
        photos = images or root / "coco" / _coco_folder(row, where)
        files.once((name, files.text(row, "caption", where), label), where, seen)
        cases.append(
            Case(
                id=f"{subtask}/{line}",
                form=Form.BINARY,
                images=(ImageRef(files.image_path(photos, name, where)),),
                texts=(files.text(row, "caption", where),),
                subtask=subtask,
                truth=int(label),
                labels={
                    "label": "true" if label else "false",
                    "relation": files.text(row, "relation", where),
                },
            )
        )
    if {case.truth for case in cases} != {0, 1}:
        raise CompoclipError(
            f"{path}: holds no true or no false statements; fetch the official file again"
        )
    return cases


def _coco_folder(row: dict[str, object], where: str) -> str:
    """The folder of COCO that the photo's address names."""
    link = PurePosixPath(files.text(row, "image_link", where))
    if link.parent.name not in _COCO:
        raise CompoclipError(
            f"{where}: 'image_link' {str(link)!r:.80} names neither {' nor '.join(_COCO)}; give "
            "the folder of the photos as images"
        )
    return link.parent.name
