"""An index of photos: their features in a file or table, and all that tells whether they hold."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import MISSING, asdict, dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from compoclip import files
from compoclip.config import Engine, Option, built, options_of, typed
from compoclip.console import counted, note, track
from compoclip.data.options import DataOptions, Needs, naming_options
from compoclip.data.places import named_files
from compoclip.data.vectors import Matrix, Quantised, Rows, StoredVectors, nearest
from compoclip.errors import CompoclipError, UsageError, require, require_package
from compoclip.models.plain_text import PlainTower
from compoclip.search.lance import (
    ABOUT,
    AGAIN,
    TableVectors,
    TableWriter,
    read_table,
    require_unit,
    save_about,
)
from compoclip.typed import Natural, Within, build, require_kind

if TYPE_CHECKING:
    from compoclip.data.sources.open import Request
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.search.photos import PhotoList

_VERSION = "compoclip index 1"
_MAGIC, _HEAD = b"compoclip index", 4096  # within the first bytes of a file of arrays
_COPIED = 1 << 14  # features of a table that are read at once
_SAVE_SECONDS = 600.0  # after which the photos encoded by now are written
_SOURCE = {
    **options_of(DataOptions),
    "spec": Option("spec", str, MISSING),
    "needs": Option("needs", Needs, MISSING),
}
"""The fields of a `Request`, which names the photos in a record, and is imported with Arrow."""


@dataclass(frozen=True)
class Calibration:
    """A score below which nothing matches, a quantile of the best scores of captions.

    "captions" is their number, "missed" and "noticed" are the shares with and without their photo
    that fall below, and "left_out" is the number of captions whose photo is not in the index.
    """

    threshold: float
    captions: Natural
    missed: float
    noticed: float
    left_out: Natural


@dataclass(frozen=True)
class IndexRecord:
    """The record of an index: "identity" and "model" of the features, "scale" and "bias" that make
    their cosines logits; "source", "root" and "upright" of the photos; "left_out" (reason ->
    number), "unreadable" (name -> why), "changes" (counts of the last run)."""

    identity: Mapping[str, object]
    model: str
    text_tower: PlainTower | None
    scale: Annotated[float, Within(1e-9)]
    bias: float | None
    source: Mapping[str, object]
    root: str
    upright: bool
    left_out: Mapping[str, Natural]
    unreadable: Mapping[str, str]
    changes: Mapping[str, Natural]
    calibration: Calibration | None


Vectors = Literal["float32", "int8"]
Storage = Literal["file", "lancedb"]


@dataclass(frozen=True, repr=False)
class PhotoIndex:
    """Features of photos.

    Args:
        features: (N, D) of unit length, an array of float32; of eight bits, or in a table,
            `features[rows]` are float32.
        names: N paths within the root folder; ids of photos that lie in tables or shards.
        stamps: N texts "state hash": what changes when the file of a photo is written (see
            `file_stamp`), and a hash of the bytes of the photo.
        about: The fields of an `IndexRecord`, JSON-ready.
        captions: The first caption of each photo; "" for a photo without one.
    """

    features: Matrix | StoredVectors
    names: Sequence[str]
    stamps: Sequence[str]
    about: Mapping[str, Any]
    captions: Sequence[str]

    def __repr__(self) -> str:
        photos, about = counted(len(self.names), "photo"), self.about
        return f"PhotoIndex({photos} of {about['source']['spec']}, encoded by {about['model']})"

    @property
    def vectors(self) -> Vectors:
        """Return the kind of numbers that the features are."""
        return "int8" if isinstance(self.features, Quantised) else "float32"

    @property
    def storage(self) -> Storage:
        """Return where the features are."""
        return "lancedb" if isinstance(self.features, TableVectors) else "file"

    def nearest(self, vectors: Matrix, top: int) -> tuple[Rows, Matrix]:
        """Return the rows of the photos nearest to each of (Q, D) vectors, and their cosines.

        They are (Q, K), K = min(top, N), the highest first. The search is exact. Raises
        CompoclipError where the features are none of the model that encoded the vectors.
        """
        origin, width = self.about["source"]["spec"], self.features.shape[1]
        if width != vectors.shape[1]:
            problem = f"its index has features of {width} numbers, not {vectors.shape[1]}"
            raise CompoclipError(f"{origin}: {problem}; {AGAIN}")
        rows, scores = nearest(self.features, vectors, top)
        if not isinstance(self.features, TableVectors):  # which checks what it reads
            require_unit(self.features[np.unique(rows).tolist()], origin)
        return rows, scores

    def save(self, path: Path) -> None:
        """Write the index to one file, or the record of one in a table to its folder.

        Raises CompoclipError when that fails.
        """
        if isinstance(self.features, TableVectors):
            save_about(path, self.about)
            return
        texts = {
            "names": self.names,
            "stamps": self.stamps,
            "about": [json.dumps(self.about)],
            "captions": self.captions,
        }
        arrays: dict[str, NDArray[Any]] = {
            name: np.frombuffer("".join(f"{text}\0" for text in entries).encode(), np.uint8)
            for name, entries in texts.items()
        }
        features = self.features
        arrays["features"] = features.codes if isinstance(features, Quantised) else features[:]
        files.write_atomically(path, lambda place: files.save_arrays(place, arrays, _VERSION))

    def photo(self, row: int, images: Path | None = None) -> Path | bytes:
        """Return the file of a photo, or its bytes where it lies in a table or shard.

        images: the folder that the photos have moved to. Raises CompoclipError for a table or shard
        that does not hold it any more.
        """
        if root := images or self.about["root"]:
            return Path(root, self.names[row])
        photos, places = self._opened
        if self.names[row] not in places:
            raise CompoclipError(f"{self.names[row]}: not in {self.about['source']['spec']}")
        return photos.image(places[self.names[row]])

    @cached_property
    def _opened(self) -> tuple[PhotoList, dict[str, int]]:
        from compoclip.data.sources.open import Request  # here: it imports Arrow
        from compoclip.search.photos import list_photos

        photos = list_photos(built(Request, typed(self.about["source"], _SOURCE)))
        return photos, {name: place for place, name in enumerate(photos.names)}

    def outdated(self, rows: Sequence[int], images: Path | None = None) -> dict[str, list[str]]:
        """Return the names of photos that are "missing" or "changed" since they were indexed.

        Photos in tables and shards are not checked. images: as for `photo`.
        """
        from compoclip.data.decode import photo_hash

        by_kind: dict[str, list[str]] = {"missing": [], "changed": []}
        for row in rows if images or self.about["root"] else ():
            photo = Path(str(self.photo(row, images)))
            if not photo.exists():
                by_kind["missing"].append(self.names[row])
            elif photo_hash(photo) != self.stamps[row].rpartition(" ")[2]:
                by_kind["changed"].append(self.names[row])
        return by_kind

    def require(self, encoder: ModelEncoder, path: Path) -> None:
        """Raise CompoclipError, naming the file, if another model made the features."""
        from compoclip.search.photos import identity_of

        identity = identity_of(encoder)
        differing = ", ".join(k for k in identity if self.about["identity"].get(k) != identity[k])
        if differing:
            raise CompoclipError(
                f"{path}: made with another model ({self.about['model']}: other {differing}); name "
                "that model with --model, or run compoclip index again"
            )


class FileTexts(Sequence[str]):
    """Texts as they are in the file: in UTF-8, with a NUL behind each.

    A search reads some ten of a million, so they become Python's where they are read. Raises
    ValueError for bytes that are no text.
    """

    def __init__(self, content: NDArray[np.uint8]) -> None:
        content.tobytes().decode()
        self._content, self._ends = content, np.flatnonzero(content == 0)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: Any) -> Any:
        """Return the text in a row, or the list of those in a slice."""
        place = range(len(self))[row]
        if isinstance(place, range):
            return [self[k] for k in place]
        start = self._ends[place - 1] + 1 if place else 0
        return self._content[start : self._ends[place]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self._content.tobytes().decode().split("\0")[:-1])


def require_index(path: Path) -> None:
    """Raise CompoclipError for what is absent, or begins as no index does."""
    if is_table(path):
        return
    make = "make it with compoclip index PHOTOS --model MODEL --out INDEX"
    require(not path.is_dir(), path, f"is a folder; to search photos in it, {make}", UsageError)
    require(path.is_file(), path, f"no such index; {make}")
    require(_begins_as_index(path), path, f"is no index of photos; {make}")


def _begins_as_index(path: Path) -> bool:
    with files.reading(path), path.open("rb") as file:
        return _MAGIC in file.read(_HEAD)


def is_table(path: Path) -> bool:
    """Return whether a path is the folder of an index in a table."""
    return (path / ABOUT).is_file()


def read_index(path: Path) -> PhotoIndex:
    """Read an index.

    Args:
        path: The file, or the folder of a table.

    Raises:
        CompoclipError: For a file that is absent, damaged or no index.
    """
    require_index(path)
    if is_table(path):
        record, vectors, columns = read_table(path)
        require(len(vectors), path, f"a damaged index; {AGAIN}")
        record = _checked(record, path)
        return PhotoIndex(vectors, columns["name"], columns["stamp"], record, columns["caption"])
    try:
        arrays = files.read_arrays(path, _VERSION)
        if arrays is None:
            raise ValueError("it is of another version")
        features = arrays.pop("features")
        names, stamps, captions, (stated,) = (
            FileTexts(arrays[name]) for name in ("names", "stamps", "captions", "about")
        )
        about = files.parse_json(stated)
        sizes = {len(names), len(stamps), len(features), len(captions)}
        if len(sizes) > 1 or features.ndim != 2:
            raise ValueError("its parts do not fit")
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = files.reason(error)
        raise CompoclipError(f"{path}: a damaged index ({reason}); {AGAIN}") from error
    about = _checked(about, path)
    if features.dtype == np.int8:
        return PhotoIndex(Quantised(features), names, stamps, about, captions)
    return PhotoIndex(features.astype(np.float32, copy=False), names, stamps, about, captions)


def _checked(about: Any, path: Path) -> dict[str, Any]:
    """Return the record of an index. Raises CompoclipError where it is not as `IndexRecord` says.

    path: of the index.
    """
    record: dict[str, Any] = require_kind(f"{path}: its record", about, dict, AGAIN)
    build(IndexRecord, record, str(path), AGAIN)
    with naming_options(lambda text: f"{text}; {AGAIN}"):
        source = typed(record["source"], _SOURCE, f"{path}: source: ")
    require("spec" in source, path, f"does not say where its photos lie; {AGAIN}")
    return record


# --- Making an index, and bringing it up to date. ---


def index_photos(
    request: Request,
    encoder: ModelEncoder,
    out: Path,
    model: str,
    batch_size: int | None = None,
    fast: bool = False,
    vectors: Vectors | None = None,
    to: Storage | None = None,
    engine: Engine = "local",
    photos: PhotoList | None = None,
) -> PhotoIndex:
    """Encode photos and write their index; unchanged photos of an existing index are reused.

    Photos are unchanged if their bytes are.

    A stopped run leaves an index of the encoded photos, and the next run continues. A killed run
    leaves those that it had encoded ten minutes before. The features do not depend on the engine.

    Args:
        request: A folder of photos, at any depth, or image-text data.
        encoder: The model.
        out: The file. One that is there must be an index.
        model: What `load` loads the model by; of a folder its absolute path is recorded.
        batch_size: Photos encoded at once; None: the default of `EncodeOptions`.
        fast: Do not read photos wholly whose files have the size, time and beginning that they had.
        vectors: The numbers to store, "float32" or "int8", of a quarter of the size; None: those of
            the existing index, float32 in a new one.
        to: "file", or "lancedb" for a folder with a table of LanceDB; None: what the existing index
            is, a file for a new one.
        engine: Where photos are encoded: "local" for this process, or "ray", where `model` must
            load the model of `encoder` on every machine.
        photos: From `list_photos`; without it they are listed here.

    Raises:
        CompoclipError: For a damaged file at `out`, and when no photo can be read; as
            `encode_on_ray`.
        UsageError: For an unknown format, options that the format has no use for, and an existing
            index of other vectors, or in another storage.
    """
    from compoclip.evaluation.encode import EncodeOptions  # which imports torch
    from compoclip.search.photos import (
        encode_on_ray,
        encode_photos,
        identity_of,
        list_photos,
    )

    require_out(out, to, vectors)
    if Path(model).exists():
        model = str(Path(model).absolute())
    with files.only_writer(out):
        old = read_index(out) if out.is_file() or is_table(out) else None
        twice = old is not None and len({*old.names}) < len(old.names)
        require(not twice, out, f"a damaged index (it has a photo twice); {AGAIN}")
        vectors = vectors or (old.vectors if old else "float32")
        storage = to or (old.storage if old else "file")
        if old and old.vectors != vectors:
            raise UsageError(
                f"{out}: holds {old.vectors} vectors, not {vectors}; leave --vectors out, or "
                "choose another --out"
            )
        photos = photos or list_photos(request)
        local = Path(request.spec).exists() or named_files(request.spec)
        spec = str(Path(request.spec).absolute()) if local else request.spec
        images = request.images and str(request.images.absolute())
        tower = encoder.text_tower()
        about: dict[str, Any] = {
            "identity": identity_of(encoder),
            "model": model,
            "text_tower": tower and asdict(tower),
            "scale": encoder.scale,
            "bias": encoder.bias,
            "source": {**vars(request), "spec": spec, "images": images},
            "root": photos.root,
            "upright": photos.upright,
            "unreadable": {},
            "calibration": None,
        }
        reasons = {"identity": "with another model", "upright": "of photos turned otherwise"}
        changed = [name for name in reasons if old and old.about[name] != about[name]]
        if changed:
            note(f"{out}: made {reasons[changed[0]]}; all photos are encoded anew")
            old = None
        unchanged = _unchanged(photos, old, fast) if old else {}
        todo = [row for row in range(len(photos.names)) if row not in unchanged]
        hashes: dict[int, str] = {}
        counts = {"encoded": 0, "unchanged": len(unchanged), "removed": 0}
        if old:
            # Photos that could not be read come last: batches are then those of a single run.
            todo.sort(key=lambda row: photos.names[row] in old.about["unreadable"])
            hashes |= {row: old.stamps[at].rpartition(" ")[2] for row, at in unchanged.items()}
            counts["removed"] = len({*old.names} - {*photos.names})
        kind: type[_TableIndex | _FileIndex] = _TableIndex if storage == "lancedb" else _FileIndex
        writer = kind(out, old, photos, unchanged, hashes, about, vectors)

        def write() -> PhotoIndex | None:
            """Write the photos that are encoded by now, if any."""
            number = counts["encoded"] + len(unchanged)
            left = {"not yet encoded": len(photos.names) - number - len(about["unreadable"])}
            about["changes"] = counts
            about["left_out"] = {**photos.left_out, **(left if any(left.values()) else {})}
            if old and counts["encoded"] == counts["removed"] == 0 and number == len(old.names):
                about["calibration"] = old.about["calibration"]
            return writer.finish() if number else None

        options = EncodeOptions(batch_size)
        at_once, readers = options.images_at_once(encoder.device), options.readers(encoder.device)
        if engine == "ray":
            encoded = encode_on_ray(photos, todo, request, encoder, at_once, readers, model)
        else:
            named_image, upright = photos.named_image, photos.upright
            encoded = encode_photos(todo, named_image, encoder, at_once, readers, upright)
        index, written = None, time.monotonic()
        try:
            with closing(encoded):
                batches = -(-len(todo) // at_once)
                for batch in track(encoded, "encoding photos", batches, "batches"):
                    for row, reason in batch.unreadable.items():
                        about["unreadable"][photos.names[row]] = reason
                    if batch.rows:
                        hashes |= batch.hashes
                        writer.add(batch.rows, batch.features)
                        counts["encoded"] += len(batch.rows)
                    if time.monotonic() - written >= _SAVE_SECONDS:
                        write()
                        written = time.monotonic()
        finally:
            index = write()
        if index is None:
            first = next(iter(about["unreadable"].values()))
            raise CompoclipError(f"{request.spec}: no photo can be read; the first is {first}")
        return index


def require_out(out: Path, to: Storage | None, vectors: Vectors | None) -> None:
    """Raise CompoclipError where an index cannot be written: a foreign file or folder, another
    storage, vectors that the storage does not hold, a package that is not installed."""
    other = "{} of an index; leave --to out, or choose another --out"
    require(not (to == "file" and is_table(out)), out, other.format("is the folder"), UsageError)
    require(not (to == "lancedb" and out.is_file()), out, other.format("is the file"), UsageError)
    table = is_table(out)
    if vectors == "int8" and (table or to == "lancedb"):
        raise UsageError(
            f"{out}: a table of LanceDB holds float32 vectors; leave --vectors int8 out"
        )
    if table:
        return
    if to == "lancedb":
        files.require_new_folder(out)
        require_package("lancedb", "lancedb", "--to lancedb")
    require(to or not out.is_dir(), out, "is a folder; name a file to write", UsageError)
    if out.is_file() and not _begins_as_index(out):
        raise CompoclipError(f"{out}: is there and no index of photos; choose another --out")


@dataclass
class _Update:
    """An index that is being made: `unchanged` are rows of photos -> their rows in the old one."""

    out: Path
    old: PhotoIndex | None
    photos: PhotoList
    unchanged: Mapping[int, int]
    hashes: Mapping[int, str]
    about: Mapping[str, Any]
    vectors: Vectors

    def copied(self, rows: Sequence[tuple[int, int]]) -> Iterator[tuple[Sequence[int], Matrix]]:
        """Yield rows of photos, and their features from the old index. rows: with those in it."""
        for start in range(0, len(rows), _COPIED):
            assert self.old is not None  # it holds what is unchanged
            photo_rows, places = zip(*rows[start : start + _COPIED])
            features = self.old.features[list(places)]
            require_unit(features, self.out)
            yield photo_rows, features


@dataclass
class _FileIndex(_Update):
    """Collects the features of an index, and writes one file of them in the end.

    They are stored once, as they will be in the file and in the order of the photos.
    """

    def __post_init__(self) -> None:
        self._encoded = np.zeros(len(self.photos.names), bool)
        self._stored: NDArray[Any] = np.zeros((0, 0), np.float32)
        for rows, features in self.copied([*self.unchanged.items()]):
            self.add(rows, features)

    def add(self, rows: Sequence[int], features: Matrix) -> None:
        vectors = Quantised.of(features).codes if self.vectors == "int8" else features
        if not self._stored.size:  # the width was not known before
            self._stored = np.zeros((len(self._encoded), vectors.shape[1]), vectors.dtype)
        self._stored[list(rows)] = vectors
        self._encoded[list(rows)] = True

    def finish(self) -> PhotoIndex:
        rows = np.flatnonzero(self._encoded)
        names, stamps, captions = self.photos.columns(rows.tolist(), self.hashes)
        stored = self._stored if len(rows) == len(self._encoded) else self._stored[rows]
        features = Quantised(stored) if stored.dtype == np.int8 else stored
        index = PhotoIndex(features, names, stamps, self.about, captions)
        index.save(self.out)
        return index


@dataclass
class _TableIndex(_Update):
    """Writes the features of an index into a table as they come; see `_FileIndex`."""

    def __post_init__(self) -> None:
        if self.old is None:
            self._table = TableWriter(self.out, self.about, (), anew=True)
            return
        _, stamps, captions = self.photos.columns([*self.unchanged], self.hashes)
        changed = [  # photos whose features hold, and whose file was copied or caption written anew
            (row, at)
            for (row, at), stamp, caption in zip(self.unchanged.items(), stamps, captions)
            if (stamp, caption) != (self.old.stamps[at], self.old.captions[at])
        ]
        current = {*self.unchanged.values()} - {at for _, at in changed}
        stale = [name for at, name in enumerate(self.old.names) if at not in current]
        self._table = TableWriter(self.out, self.about, stale, anew=False)
        for rows, features in self.copied(changed):
            self.add(rows, features)

    def add(self, rows: Sequence[int], features: Matrix) -> None:
        self._table.add(*self.photos.columns(rows, self.hashes), features)

    def finish(self) -> PhotoIndex:
        self._table.finish()
        return read_index(self.out)


def _unchanged(photos: PhotoList, old: PhotoIndex, fast: bool) -> dict[int, int]:
    """The rows of photos whose features an index holds -> their rows in the index."""
    from concurrent.futures import ThreadPoolExecutor

    from compoclip.data.decode import photo_hash
    from compoclip.workers import available_cores

    places = {name: row for row, name in enumerate(old.names)}
    shared = [(row, places[name]) for row, name in enumerate(photos.names) if name in places]

    def unchanged(pair: tuple[int, int]) -> bool:
        row, place = pair
        state, _, content = old.stamps[place].rpartition(" ")
        if fast and state == photos.stamps[row]:
            return True
        return bool(state) and photo_hash(photos.image(row)) == content

    with ThreadPoolExecutor(available_cores()) as pool:
        same = track(pool.map(unchanged, shared), "comparing photos", len(shared), "photos")
        return dict(compress(shared, same))


def duplicates(index: PhotoIndex, threshold: float = 0.98) -> list[tuple[str, ...]]:
    """Return the names of each group of photos whose features are nearly equal, in order of the
    index.

    Every pair is compared: seconds for 10,000 photos, hours for a million.

    Args:
        index: The photos.
        threshold: Least cosine of a pair; groups are what pairs connect.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    features, block = index.features, 4096
    starts = range(0, len(features), block)
    pairs = []
    for start in track(starts, "comparing photos", len(starts), "blocks"):
        require_unit(features[start : start + block], "the index")
        for other in range(start, len(features), block):
            cosines = features[start : start + block] @ features[other : other + block].T
            pairs.append(np.argwhere(cosines >= threshold) + np.array([start, other]))
    ends = np.concatenate(pairs).T
    edges = coo_array((np.ones(ends.shape[1]), ends), (len(features),) * 2)
    groups: dict[int, list[str]] = {}
    for name, label in zip(index.names, connected_components(edges)[1].tolist()):
        groups.setdefault(label, []).append(name)
    return [tuple(names) for names in groups.values() if len(names) > 1]
