"""Negation: NegBench (choice and retrieval), NegRefCOCOg, and CC-Neg as a sanity check.

**NegBench** (Alhamoud et al., CVPR 2025), one photo and four statements, is read from

    <root>/negbench/COCO_val_mcq_llama3.1_rephrased.csv   photos <root>/coco/val2017
    <root>/negbench/VOC2007_mcq_llama3.1_rephrased.csv    photos <root>/voc2007/JPEGImages

(option `annotations`: another folder), with the columns image_path, caption_0 to caption_3,
correct_answer (which caption is true, from 0) and correct_answer_template: positive ("A has B"),
negative ("A has no C") or hybrid (both). Of image_path the file name counts; argument `images`
and option `voc_images` name other folders. The truth is stored first and the first of equal scores
is taken, so a tie is **right**. Headline `mean`: the mean of `coco` and `voc`, each over all its
items. Accuracies far below chance on "negative" are real: encoders prefer the statement that names
what they see. The kinds of statement differ in form, so look at `compoclip data audit negbench
--text-only` beside them.

Its **retrieval** is two benchmarks, `negbench_retrieval` and `negbench_retrieval_negated`, read
from `<root>/negbench/COCO_val_retrieval.csv` and `COCO_val_negated_retrieval_llama3.1_rephrased_
affneg_true.csv` (option `annotations`: another file), with the columns filepath and captions, the
latter a Python list in text. Headline `t2i_r5`: R@5 of photos by text, as published (R@5 and
R-Neg@5).

**NegRefCOCOg** (NegationCLIP, Park et al., ICCV 2025), which of two regions of a photo a phrase
with a negation means, is read from `<root>/negrefcocog/NegRefCOCOg.json` (option `annotations`:
another file), one JSON list:

    [{"image": "COCO_train2014_000000000036.jpg", "phrase": "an umbrella with nobody under it",
      "ref_bbox": [x, y, width, height], "bbox_list": [[x, y, width, height], ...]}]

Photos: `<root>/coco/train2014` (argument `images`), so that training on COCO has seen them. A tie
is wrong. The larger box often holds the smaller one: `data audit negrefcocog --text-only` tells
how far "take the larger box" gets.

**CC-Neg** (CoN-CLIP, Singh et al., WACV 2025), a caption and its negation, is read from
`<root>/cc_neg/ccneg_preprocessed.pt` (option `annotations`: another file), a pickle of {"image_
paths": [...], "annotations": [{"json": {"caption": ...}, "sop_data": {"negative-prompt": ...}}]}.
Nothing in it is executed: a pickle that names any class or function is refused. The last 40,000
rows are the test; commas are taken out of the negations, as the authors do. Photos: `<root>/cc3m/
<folder>/<file>`, the last two parts of the path (argument `images`). A tie is right. The negation
is nearly always the longer text, so taking the shorter text all but solves it: it has no skill and
counts in no mean of benchmarks.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from compoclip import files as room_files
from compoclip.benchmarks import files, tables
from compoclip.benchmarks.case import (
    Aggregate,
    Benchmark,
    Case,
    Form,
    ImageRef,
    Meta,
    Retrieval,
    TiePolicy,
)
from compoclip.benchmarks.reader import CaseReader, Loading, Reader, Subtask, facts
from compoclip.data.textfiles import require_texts
from compoclip.errors import CompoclipError, UsageError

TEMPLATES = ("positive", "negative", "hybrid")
"""The kinds of NegBench's true statements."""
_COUNTS = {"coco": (2032, 1870, 2012), "voc": (682, 2121, 2228)}
_MCQ = {
    "coco": "COCO_val_mcq_llama3.1_rephrased.csv",
    "voc": "VOC2007_mcq_llama3.1_rephrased.csv",
}
_MCQ_TEXTS = tuple(f"caption_{k}" for k in range(4))
_MCQ_COLUMNS = ("image_path", *_MCQ_TEXTS, "correct_answer", "correct_answer_template")
_REMEDY = "put it there or select the parts you have, e.g. negbench:coco_*"
_NEGBENCH = "Alhamoud et al., Vision-Language Models Do Not Understand Negation, CVPR 2025"
_DRIVE = "file share of repository m1k2zoo/negbench"
META = Meta(
    id="negbench",
    title="NegBench (multiple choice)",
    citation=_NEGBENCH,
    source=f"{_DRIVE}; photos: COCO val2017 and VOC 2007",
    licence="MIT",
    access="open; authors' file share",
    files=tuple(f"negbench/{name}" for name in _MCQ.values()),
    images=("coco/val2017", "voc2007/JPEGImages"),
    chance={"": 1 / 4},
    **facts(
        {
            f"{place}_{template}": Subtask("negation", count)
            for place, counts in _COUNTS.items()
            for template, count in zip(TEMPLATES, counts)
        }
    ),
)


def _of(place: str) -> Aggregate:
    return Aggregate(tuple(f"{place}_{each}" for each in TEMPLATES), "micro")


def _choices(
    data: Loading, *, annotations: Path | None = None, voc_images: Path | None = None
) -> Iterator[Case]:
    folders = {
        "coco": data.photos("coco/val2017"),
        "voc": voc_images or data.root / "voc2007" / "JPEGImages",
    }
    for place, name in _MCQ.items():
        if not any(part.startswith(place) for part in data.parts):
            continue
        path = data.files[place] = (annotations or data.root / "negbench") / name
        for number, (where, row) in enumerate(tables.read_rows(path, _MCQ_COLUMNS, _REMEDY), 1):
            template = row["correct_answer_template"].strip()
            if template not in TEMPLATES:
                raise CompoclipError(
                    f"{where}: 'correct_answer_template' {template!r:.40} is unknown; known: "
                    f"{', '.join(TEMPLATES)}"
                )
            truth = tables.number(row, "correct_answer", where)
            if truth not in range(len(_MCQ_TEXTS)):
                raise CompoclipError(
                    f"{where}: 'correct_answer' must be 0, 1, 2 or 3, not {truth:g}"
                )
            texts = files.texts(row, _MCQ_TEXTS, where)
            image = _named(folders[place], files.text(row, "image_path", where), where)
            subtask = f"{place}_{template}"
            key = f"{subtask}/{number}"
            yield Case(key, Form.CHOOSE_TEXT, (image,), texts, subtask, int(truth))


def _named(folder: Path, path: str, where: str, parts: int = 1) -> ImageRef:
    """The photo by the last `parts` parts of a path of the authors' machine."""
    last = "/".join(PurePosixPath(path.replace("\\", "/")).parts[-parts:])
    return ImageRef(files.image_path(folder, last, where))


NEGBENCH = CaseReader(
    META,
    _choices,
    rules={
        "mean": Aggregate((_of("coco"), _of("voc"))),
        "coco": _of("coco"),
        "voc": _of("voc"),
        **{each: Aggregate((f"coco_{each}", f"voc_{each}"), "micro") for each in TEMPLATES},
    },
    headline="mean",
    ties=TiePolicy.FIRST,
    empty="no rows of PARTS; fetch the official file again",
)

# --- NegBench's retrieval: the same photos by plain captions and by captions with a negation. ---

_RULES = {
    "t2i_r5": Aggregate(("t2i",), metric="r5"),
    **{f"r{k}": Aggregate(("i2t", "t2i"), metric=f"r{k}") for k in (1, 5, 10)},
}


def _gallery(name: str, title: str, file: str) -> Reader:
    """The reader of one file of photos with their captions."""
    about = Meta(
        id=name,
        title=title,
        citation=_NEGBENCH,
        source=f"{_DRIVE}; photos: COCO val2017",
        licence="MIT",
        access="open; authors' file share",
        files=(f"negbench/{file}",),
        images=("coco/val2017",),
        parts=(),
        chance={},
        skills={"i2t": "retrieval", "t2i": "retrieval"},
        expected={"i2t": 5000},
    )

    def load(
        root: Path,
        images: Path | None = None,
        *,
        subtasks: Sequence[str] = (),
        annotations: Path | None = None,
    ) -> Benchmark:
        if subtasks:
            raise UsageError(f"{name} is one gallery and has no sub-tasks; name it alone")
        path = annotations or root / "negbench" / file
        photos: dict[str, ImageRef] = {}
        texts: list[str] = []
        owners: list[int] = []
        for where, row in tables.read_rows(path, ("filepath", "captions"), files.OFFICIAL):
            image = _named(
                images or root / "coco" / "val2017", files.text(row, "filepath", where), where
            )
            if image.photo in photos:
                raise CompoclipError(f"{where}: photo {image.path.name!r:.80} is listed twice")
            photos[image.photo] = image
            found = tables.texts(row, "captions", where)
            if not found:
                raise CompoclipError(f"{where}: photo {image.path.name!r:.80} has no caption")
            texts += found
            owners += [len(photos) - 1] * len(found)
        if not photos:
            raise CompoclipError(f"{path}: no rows; {files.OFFICIAL}")
        return Benchmark(
            name=name,
            content=Retrieval(
                tuple(photos.values()), tuple(texts), tuple(zip(owners, range(len(texts))))
            ),
            data_hash=files.data_hash({"captions": path}),
            ties={"": TiePolicy.FIRST},
            skills=about.skills,
            expected=about.expected,
            aggregates=_RULES,
            headline="t2i_r5",
        )

    return Reader(about, load)


NEGBENCH_RETRIEVAL = _gallery(
    "negbench_retrieval", "NegBench (retrieval)", "COCO_val_retrieval.csv"
)
NEGBENCH_NEGATED = _gallery(
    "negbench_retrieval_negated",
    "NegBench (retrieval by negated captions)",
    "COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv",
)

# --- NegRefCOCOg. ---

_REGIONS = Meta(
    id="negrefcocog",
    title="NegRefCOCOg",
    citation='Park et al., Know "No" Better: A Data-Driven Approach for Enhancing Negation '
    "Awareness in CLIP, ICCV 2025",
    source="repository parkquasar/NegationCLIP, folder NegRefCOCOg; photos: COCO train2014",
    licence="MIT",
    access="open; copy the file from the repository",
    files=("negrefcocog/NegRefCOCOg.json",),
    images=("coco/train2014",),
    chance={"": 1 / 2},
    **facts({"negrefcocog": Subtask("negation", 440)}),
)


def _regions(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    path = annotations or data.root / "negrefcocog" / "NegRefCOCOg.json"
    photos = data.photos("coco/train2014")
    for index, where, row in data.rows("rows", path):
        photo = files.photo(photos, row, "image", where)
        phrase = files.text(row, "phrase", where)
        own = _corners(files.field(row, "ref_bbox", where), f"{where}: 'ref_bbox'")
        listed = files.items(files.field(row, "bbox_list", where), f"{where}: 'bbox_list'")
        boxes = [_corners(each, f"{where}: box {k}") for k, each in enumerate(listed)]
        if len(boxes) < 2 or boxes.count(own) != 1:
            raise CompoclipError(
                f"{where}: 'bbox_list' must hold at least two boxes and 'ref_bbox' once, found "
                f"{len(boxes)} and {boxes.count(own)} times; {files.OFFICIAL}"
            )
        refs = tuple(ImageRef(photo.path, box) for box in boxes)
        truth = boxes.index(own)
        yield Case(f"{index}", Form.CHOOSE_IMAGE, refs, (phrase,), "negrefcocog", truth)


def _corners(value: Any, where: str) -> tuple[float, float, float, float]:
    """(left, upper, right, lower) of a list [x, y, width, height]."""
    row = files.items(value, where)
    if len(row) != 4:
        raise CompoclipError(f"{where}: expected [x, y, width, height], found {len(row)}")
    return files.box({f"bbox_{name}": each for name, each in zip("xywh", row)}, where)


NEGREFCOCOG = CaseReader(_REGIONS, _regions, empty="no rows; fetch the official file again")

# --- CC-Neg, out of a pickle that may hold nothing but lists, dicts, texts and numbers. ---

TEST_ROWS = 40_000
_MOST_PICKLED = 1 << 30  # the official file holds 228,246 rows with all that was asked of a parser
_MAGIC = 0x1950A86A20F9469CFC6C  # the first of the pickles in a file of torch.save before 1.6
_BROKEN = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


_PLAIN_OPCODES = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "MEMOIZE"),
    *("PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "PERSID", "BINPERSID"),  # to say what is refused
)


class PlainUnpickler(pickle._Unpickler):
    """Loads lists, dicts, texts and numbers; knows no opcode that does anything else.

    The one in C allocates whatever a file claims to hold; this one only what is there.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code[0]: pickle._Unpickler.dispatch[code[0]]
        for code in (getattr(pickle, name) for name in _PLAIN_OPCODES)
    }

    def find_class(self, module: str, name: str) -> Any:
        """Refuse: to look a name up is to import and, with a reduction, to run it."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and nothing in it is executed")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse: a tensor, which the official file does not hold."""
        raise pickle.UnpicklingError("it holds a tensor, which the official file does not")


def read_plain_pickle(path: Path) -> Any:
    """The value of a pickle of plain data: alone, or as torch.save wraps it, before or since 1.6.

    Args:
        path: The file.

    Returns:
        Lists, dicts, texts and numbers.

    Raises:
        CompoclipError: The file is absent, damaged or too large, or names anything to be executed.
    """
    try:
        size = path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                inner = [each for each in archive.infolist() if each.filename[-9:] == "/data.pkl"]
                if len(inner) != 1 or inner[0].file_size > _MOST_PICKLED:
                    raise CompoclipError(f"{path}: no archive of torch.save; {files.OFFICIAL}")
                with archive.open(inner[0]) as stream:
                    return PlainUnpickler(io.BytesIO(stream.read(inner[0].file_size))).load()
        if size > _MOST_PICKLED:
            raise CompoclipError(f"{path}: more than {_MOST_PICKLED >> 20} MiB; {files.OFFICIAL}")
        return _legacy(io.BytesIO(path.read_bytes()))
    except CompoclipError:
        raise
    except OSError as error:
        raise room_files.unreadable(path, error, files.OFFICIAL) from error
    except (*_BROKEN, *files.DAMAGED) as error:
        reason = room_files.reason(error)
        raise CompoclipError(f"{path}: no pickle of plain data ({reason}); {files.OFFICIAL}") from (
            error
        )


def _legacy(stream: io.BytesIO) -> Any:
    value = PlainUnpickler(stream).load()
    if value == _MAGIC:  # then the protocol and facts about the machine come before the value
        value = [PlainUnpickler(stream).load() for _ in range(3)][-1]
    return value


_SANITY = Meta(
    id="cc_neg",
    title="CC-Neg (sanity check)",
    citation='Singh et al., Learn "No" to Say "Yes" Better: Improving Vision-Language Models via '
    "Negations, WACV 2025",
    source="file share of repository jaisidhsingh/CoN-CLIP; photos: Conceptual Captions (CC3M)",
    licence="that of CC3M",
    access="open; authors' file share, photos from their own addresses",
    status="partly dead",
    files=("cc_neg/ccneg_preprocessed.pt",),
    images=("cc3m",),
    parts=("cc_neg",),
    chance={"": 1 / 2},
    skills={},
    expected={"cc_neg": TEST_ROWS},
)


def _negations(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    path = annotations or data.root / "cc_neg" / "ccneg_preprocessed.pt"
    data.files["rows"] = path
    photos = data.photos("cc3m")
    paths, rows = _pickled(path)
    first = max(0, len(rows) - TEST_ROWS)
    data.left_out[f"rows before the last {TEST_ROWS:,}, which are for training"] += first
    for index in range(first, len(rows)):
        where = f"{path}: row {index}"
        name, *texts = _negated(paths[index], rows[index], where)
        image = _named(photos, name, where, 2)
        yield Case(f"{index}", Form.CHOOSE_TEXT, (image,), tuple(texts), "cc_neg")


def cc_neg_training(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of CC-Neg that are for training: all but the last 40,000.

    Args:
        path: The authors' pickle.

    Yields:
        {"filepath", "title", "neg_caption"}: the last two parts of a photo's path, its caption, and
        the negation alone in a list, as NegCLIP's tables have it.

    Raises:
        CompoclipError: For a file as `read_plain_pickle` refuses it, or of another form.
    """
    paths, rows = _pickled(path)
    if len(rows) <= TEST_ROWS:
        raise CompoclipError(
            f"{path}: {len(rows):,} rows, of which the last {TEST_ROWS:,} are the test: none are "
            f"left to train on; {files.OFFICIAL}"
        )
    for index in range(len(rows) - TEST_ROWS):
        where = f"{path}: row {index}"
        name, caption, negation = _negated(paths[index], rows[index], where)
        photo = "/".join(PurePosixPath(name.replace("\\", "/")).parts[-2:])
        yield {"filepath": photo, "title": caption, "neg_caption": [negation]}


def _pickled(path: Path) -> tuple[list[Any], list[Any]]:
    """The paths and the annotations of CC-Neg, as many of both."""
    value = files.record(read_plain_pickle(path), str(path))
    paths, rows = (
        files.items(files.field(value, key, str(path)), f"{path}: {key!r}")
        for key in ("image_paths", "annotations")
    )
    if len(paths) != len(rows):
        raise CompoclipError(
            f"{path}: {len(paths)} image paths and {len(rows)} annotations; {files.OFFICIAL}"
        )
    return list(paths), list(rows)


def _negated(path: Any, annotation: Any, where: str) -> tuple[str, str, str]:
    """The path of a photo, its caption and the negation without commas."""
    row = files.record(annotation, where)
    own, made = (
        files.record(files.field(row, key, where), f"{where}: {key!r}")
        for key in ("json", "sop_data")
    )
    texts = (
        files.text(own, "caption", where),
        files.text(made, "negative-prompt", where).replace(",", ""),
    )
    name = files.nonempty(path, f"{where}: image path")
    require_texts((*texts, name), where)
    return (name, *texts)


CC_NEG = CaseReader(_SANITY, _negations, ties=TiePolicy.FIRST, empty="no rows; fetch it again")
