"""Negation: NegBench's retrieval, and the pickle of CC-Neg.

The retrieval of **NegBench** (Alhamoud et al., CVPR 2025) is two benchmarks,
`negbench_retrieval` and `negbench_retrieval_negated`, read from
`<root>/negbench/COCO_val_retrieval.csv` and
`COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv` (option `annotations`: another
file), with the columns filepath and captions, the latter a Python list in text. Headline `t2i_r5`:
R@5 of photos by text, as published (R@5 and R-Neg@5).

Nothing in the pickle of **CC-Neg** (CoN-CLIP, Singh et al., WACV 2025) is executed: one that names
any class or function is refused.
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
from compoclip.archives import DAMAGED_ZIP
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
from compoclip.benchmarks.reader import Loading, Reader
from compoclip.data.columns import require_texts
from compoclip.errors import CompoclipError, UsageError

_NEGBENCH = "Alhamoud et al., Vision-Language Models Do Not Understand Negation, CVPR 2025"
_DRIVE = "file share of repository m1k2zoo/negbench"


def _named(folder: Path, path: str, where: str, parts: int = 1) -> ImageRef:
    """The photo by the last `parts` parts of a path of the authors' machine."""
    last = "/".join(PurePosixPath(path.replace("\\", "/")).parts[-parts:])
    return ImageRef(files.image_path(folder, last, where))


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
    except (*_BROKEN, *DAMAGED_ZIP) as error:
        reason = room_files.reason(error)
        raise CompoclipError(f"{path}: no pickle of plain data ({reason}); {files.OFFICIAL}") from (
            error
        )


def _legacy(stream: io.BytesIO) -> Any:
    value = PlainUnpickler(stream).load()
    if value == _MAGIC:  # then the protocol and facts about the machine come before the value
        value = [PlainUnpickler(stream).load() for _ in range(3)][-1]
    return value


def cc_neg(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    """Yield the caption and the negation of each of the last rows."""
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
