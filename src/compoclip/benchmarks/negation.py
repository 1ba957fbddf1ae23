"""CC-Neg (CoN-CLIP, Singh et al., WACV 2025), out of a pickle that may hold plain data alone.

Nothing in the pickle is executed: one that names any class or function is refused.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from compoclip import files as room_files
from compoclip.archives import DAMAGED_ZIP
from compoclip.benchmarks import files
from compoclip.benchmarks.case import Case, Form, ImageRef
from compoclip.benchmarks.reader import Loading
from compoclip.data.columns import require_texts
from compoclip.errors import CompoclipError, require

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
    """Load lists, dicts, texts and numbers; know no opcode that does anything else.

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
    """Return the value of a pickle of plain data: alone, or as torch.save wraps (or wrapped) it."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                inner = [each for each in archive.infolist() if each.filename[-9:] == "/data.pkl"]
                good = len(inner) == 1 and inner[0].file_size <= _MOST_PICKLED
                require(good, path, f"no archive of torch.save; {files.OFFICIAL}")
                return PlainUnpickler(io.BytesIO(archive.read(inner[0]))).load()
        problem = f"more than {_MOST_PICKLED >> 20} MiB; {files.OFFICIAL}"
        require(path.stat().st_size <= _MOST_PICKLED, path, problem)
        stream = io.BytesIO(path.read_bytes())
        value = PlainUnpickler(stream).load()
        if value == _MAGIC:  # then the protocol and facts about the machine come before the value
            value = [PlainUnpickler(stream).load() for _ in range(3)][-1]
        return value
    except CompoclipError:
        raise
    except OSError as error:
        raise room_files.unreadable(path, error, files.OFFICIAL) from error
    except (*_BROKEN, *DAMAGED_ZIP) as error:
        reason = room_files.reason(error)
        raise CompoclipError(f"{path}: no pickle of plain data ({reason}); {files.OFFICIAL}") from (
            error
        )


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
        image = ImageRef(files.image_path(photos, name, where))
        yield Case(f"{index}", Form.CHOOSE_TEXT, (image,), tuple(texts), "cc_neg")


def cc_neg_training(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of CC-Neg that are for training: all but the last 40,000.

    A row is {"filepath", "title", "neg_caption"}: the last two parts of a photo's path, its
    caption, and the negation alone in a list, as NegCLIP's tables have it.
    """
    paths, rows = _pickled(path)
    problem = f"{len(rows):,} rows, of which the last {TEST_ROWS:,} are the test: none are left to "
    require(len(rows) > TEST_ROWS, path, f"{problem}train on; {files.OFFICIAL}")
    for index in range(len(rows) - TEST_ROWS):
        name, caption, negation = _negated(paths[index], rows[index], f"{path}: row {index}")
        yield {"filepath": name, "title": caption, "neg_caption": [negation]}


def _pickled(path: Path) -> tuple[list[Any], list[Any]]:
    """Return the paths and the annotations of CC-Neg, as many of both."""
    value = files.record(read_plain_pickle(path), str(path))
    paths, rows = (
        files.items(files.field(value, key, str(path)), f"{path}: {key!r}")
        for key in ("image_paths", "annotations")
    )
    problem = f"{len(paths)} image paths and {len(rows)} annotations; {files.OFFICIAL}"
    require(len(paths) == len(rows), path, problem)
    return list(paths), list(rows)


def _negated(path: Any, annotation: Any, where: str) -> tuple[str, str, str]:
    """Return the last two parts of a photo's path, its caption and the negation without commas."""
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
    return ("/".join(PurePosixPath(name.replace("\\", "/")).parts[-2:]), *texts)
