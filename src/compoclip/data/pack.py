"""Any image-text source as webdataset shards with small images, made once, read often.

A sample is KEY.jpg (or the format it had) and KEY.json with its captions and the extra columns that
`read_extras` knows, under the names it reads; a negative image is KEY.neg_image.jpg. KEY is the
sample's number in the source. A sample whose image cannot be read keeps its .json, so that row
numbers stay what they were; readers count it as a sample without an image.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import PIL
from PIL import Image

from compoclip.console import counted, note, track
from compoclip.data.columns import (
    GROUP,
    IMAGE_SCORE,
    MIRROR,
    NEG_CAPTION,
    NEG_IMAGE,
    POS_CAPTION,
    SCORE,
)
from compoclip.data.decode import Mirrored, opened
from compoclip.data.fingerprint import FILE, Fingerprint, listed
from compoclip.data.sources import Sample, Source
from compoclip.data.sources.open import Orientation, open_source
from compoclip.data.sources.shards import CAPTION_LIMIT
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import (
    LOCK,
    only_writer,
    read_json,
    require_writable,
    write_atomically,
    write_text,
)
from compoclip.tables import require_local
from compoclip.version import __version__

RECORD = "pack.json"
IMAGE, NEGATIVE = "unreadable image", "unreadable negative image"
_EXTENSIONS = {
    "JPEG": "jpg",
    "MPO": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "BMP": "bmp",
    "GIF": "gif",
    "TIFF": "tif",
    "PPM": "ppm",
    "JPEG2000": "jp2",
}


@dataclass(frozen=True)
class Request:
    """Arguments of `open_source`, which every process opens for itself."""

    spec: str
    images: Path | None = None
    image_column: str | None = None
    caption_column: str | None = None
    split: str | None = None
    quoting: bool = True
    orientation: Orientation | None = None

    def open(self) -> Source:
        """The source. Raises what `open_source` raises, UsageError without the folder of images."""
        require_local(self.images or "")
        if self.images is not None and not self.images.is_dir():
            raise UsageError(f"{self.images}: no such folder; --images names that of the images")
        return open_source(**vars(self))


@dataclass(frozen=True)
class PackSpec:
    """How images are stored.

    size: length of the shorter side; larger images are scaled down (bicubic) and stored as JPEG of
    this quality, others stay as they are, byte for byte. keep: all do. shard_size: samples a shard.
    """

    size: int = 256
    quality: int = 90
    keep: bool = False
    shard_size: int = 1000

    def __post_init__(self) -> None:
        """Raises UsageError for values that make no pack."""
        if self.size < 1 or self.shard_size < 1:
            raise UsageError("--size and --shard-size must be at least 1")
        if not 1 <= self.quality <= 100:
            raise UsageError(f"--quality {self.quality}: must be 1 to 100")

    def record(self) -> dict[str, Any]:
        """The settings that decide what is stored."""
        return asdict(self)


@dataclass
class PackSummary:
    """The contents of a pack: samples, images (negative ones too) by what became of them, the bytes
    of the shards, and what could not be read: sample id -> reason."""

    shards: int = 0
    samples: int = 0
    scaled: int = 0
    as_they_were: int = 0
    size_bytes: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(value: Any, path: Path) -> PackSummary:
        """The summary stored as a dictionary in `path`. Raises CompoclipError for anything else."""
        usual = asdict(PackSummary())
        right = isinstance(value, dict) and usual.keys() == value.keys()
        for name, empty in usual.items() if right else ():
            kind = str if name == "bad" else int
            values = value[name].values() if isinstance(value[name], dict) else [value[name]]
            right = right and type(value[name]) is type(empty)
            right = right and all(type(each) is kind for each in values)
        if not right:
            raise CompoclipError(f"{path}: not a record of a pack; delete the folder, pack again")
        return PackSummary(**value)

    def add(self, other: PackSummary) -> None:
        """Count another part."""
        for name in ("shards", "samples", "scaled", "as_they_were", "size_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.left_out = dict(Counter(self.left_out) + Counter(other.left_out))
        self.bad |= other.bad


@dataclass(frozen=True)
class PackTask:
    """One shard to write, with all a worker process needs to write it."""

    request: Request
    out: Path
    spec: PackSpec
    max_bad: int
    number: int = 0


Run = Callable[[Callable[[PackTask], PackSummary], Sequence[PackTask]], Iterable[PackSummary]]
"""Does tasks in any order and gives the results: `map`, or `corpora.engine.run` for processes."""


def pack(
    request: Request,
    out: Path,
    spec: PackSpec,
    run: Run = map,
    max_bad: int = 0,
) -> PackSummary:
    """Write a source below the folder `out` as pack-000000.tar, ...; pack.json says what it holds.

    A shard appears when it is whole; where a pack of the same source and spec was interrupted, the
    shards that are there are kept. The bytes do not depend on `run`.

    Raises UsageError when `out` holds something else, CompoclipError after more than `max_bad`
    unreadable images, when the disk is full and when another process is writing `out`; what is
    finished stays.
    """
    source = request.open()
    made_from = _fingerprint(source, spec)
    finished = _check(out, made_from)
    if finished is not None:  # and may be read while another process reads it
        return finished
    require_writable(out)
    with only_writer(out, folder=True):
        finished = _check(out, made_from)
        return finished or _pack(source, made_from, PackTask(request, out, spec, max_bad), run)


def _pack(source: Source, made_from: Fingerprint, shard: PackTask, run: Run) -> PackSummary:
    out, spec, max_bad = shard.out, shard.spec, shard.max_bad
    _opened.cache_clear()  # the data may have changed since an earlier pack of this process
    made_from.save(out)
    write_text(out / RECORD, _shown(made_from.values))
    total, todo = PackSummary(), []
    numbers = range(len(shard_paths(out, len(source), spec)))
    for number in numbers:
        found = _finished(out, number)
        if found is None:
            todo.append(replace(shard, number=number))
        else:
            total.add(found)
    if total.shards:
        note(f"going on: {total.shards} of {len(numbers)} shards are there")
    _refuse_bad(total, max_bad)
    for part in track(run(pack_shard, todo), "packing", len(todo), "shards"):
        total.add(part)
        _refuse_bad(total, max_bad)
    total.bad = dict(sorted(total.bad.items()))
    total.left_out = dict(Counter(source.left_out) + Counter(total.left_out))
    write_text(out / RECORD, _shown({**made_from.values, "packed": asdict(total)}))
    for number in numbers:
        _counts(out, number).unlink(missing_ok=True)
    return total


def pack_shard(task: PackTask) -> PackSummary:
    """Write one shard, and before it its counts."""
    made = PackSummary(shards=1)
    write_atomically(_shard(task.out, task.number), partial(_write, task, made))
    return made


def shard_paths(out: Path, samples: int, spec: PackSpec) -> list[Path]:
    """Where the shards of a pack of so many samples are."""
    return [_shard(out, number) for number in range(-(-samples // spec.shard_size))]


def _shard(out: Path, number: int) -> Path:
    return out / f"pack-{number:06d}.tar"


def _counts(out: Path, number: int) -> Path:
    return out / f"pack-{number:06d}.json"


def _finished(out: Path, number: int) -> PackSummary | None:
    """The counts of a shard that is there; None for one that is to be made."""
    counts = _counts(out, number)
    if not (_shard(out, number).is_file() and counts.is_file()):
        return None
    try:
        return PackSummary.of(read_json(counts), counts)
    except CompoclipError:
        note(f"{counts}: damaged; {_shard(out, number).name} is made again")
        return None


def _fingerprint(source: Source, spec: PackSpec) -> Fingerprint:
    """What identifies a pack; two packs of equal fingerprints hold the same."""
    data = source.fingerprint()
    values = {
        "source": source.describe(),
        "samples": len(source),
        "orientation": source.orientation,
        "spec": spec.record(),
        "made_by": {"compoclip": __version__, "pillow": PIL.__version__},
    }
    return Fingerprint({**values, **data.values}, data.rows)


def _check(out: Path, made_from: Fingerprint) -> PackSummary | None:
    """The pack that is in `out`, finished; None when there is none yet, or a part of it."""
    path = out / RECORD
    if not path.is_file():
        if out.is_dir() and any(each.name not in (LOCK, FILE) for each in out.iterdir()):
            raise UsageError(f"{out}: already exists and is no pack; choose another --out")
        return None
    found = read_json(path, damaged="delete the folder and pack again")
    if not isinstance(found, dict):
        raise CompoclipError(f"{path}: not a record of a pack; delete the folder, pack again")
    if differences := Fingerprint.load(out).differences(made_from):
        raise UsageError(f"{out}: holds another pack: {listed(differences)}; choose another --out")
    return PackSummary.of(found["packed"], path) if "packed" in found else None


def _refuse_bad(total: PackSummary, max_bad: int) -> None:
    if len(total.bad) > max_bad:
        first = "; ".join(list(total.bad.values())[:3])
        raise CompoclipError(
            f"{counted(len(total.bad), 'unreadable image')}, {max_bad} allowed: {first}; mend the "
            "data, or raise --max-bad and go on with the same command"
        )


@dataclass(frozen=True)
class _OpenedShard:
    """A source with the columns that are read whole."""

    source: Source
    groups: list[str]
    scores: list[float | None]
    image_scores: list[float | None]


@lru_cache(1)
def _opened(request: Request) -> _OpenedShard:
    source = request.open()
    return _OpenedShard(source, *source.groups(), source.image_scores())


def _write(task: PackTask, made: PackSummary, target: Path) -> None:
    data, spec = _opened(task.request), task.spec
    first = task.number * spec.shard_size
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(first, min(first + spec.shard_size, len(data.source))):
            for name, content in _members(data, index, spec, made):
                info = tarfile.TarInfo(f"{index:08d}.{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            _refuse_bad(made, task.max_bad)
    made.size_bytes = target.stat().st_size
    write_text(_counts(task.out, task.number), _shown(asdict(made)))


def _members(
    data: _OpenedShard, index: int, spec: PackSpec, made: PackSummary
) -> Iterator[tuple[str, bytes]]:
    """The tar members of a sample: the part of the name after the key, and the bytes."""
    sample = data.source[index]
    fields: dict[str, Any] = {
        "id": sample.id,
        "caption": list(sample.captions),
        NEG_CAPTION: list(sample.negatives),
        POS_CAPTION: list(sample.positives),
        NEG_IMAGE: list(sample.neighbours),
        GROUP: data.groups[index],
        SCORE: data.scores[index],
        IMAGE_SCORE: data.image_scores[index],
    }
    fields = {name: value for name, value in fields.items() if value not in ([], "", None)}
    made.samples += 1
    negative = sample.negative_image
    if isinstance(negative, Mirrored):  # stored as it is; not at all if it is the sample's image
        fields[MIRROR] = True
        negative = None if negative.image == sample.image else negative.image
    try:
        yield _image(sample, sample.image, spec, made, data.source.upright)
    except CompoclipError as error:
        _leave_out(made, IMAGE, sample.id, error)
        fields["left_out"] = str(error)
    if negative is not None and "left_out" not in fields:
        try:
            extension, content = _image(sample, negative, spec, made, data.source.upright)
            yield f"{NEG_IMAGE}.{extension}", content
        except CompoclipError as error:
            fields.pop(MIRROR, None)
            _leave_out(made, NEGATIVE, f"{sample.id} (negative image)", error)
    text = json.dumps(fields, ensure_ascii=False).encode()
    if len(text) > CAPTION_LIMIT:
        raise CompoclipError(f"{sample.id}: {len(text)} bytes of captions; shorten them")
    yield "json", text


def _image(
    sample: Sample, image: Path | bytes, spec: PackSpec, made: PackSummary, upright: bool
) -> tuple[str, bytes]:
    name = sample.id if isinstance(image, bytes) else ""
    extension, content = packed_image(image, spec, name, upright)
    if content is None:
        made.as_they_were += 1
        return extension, image if isinstance(image, bytes) else image.read_bytes()
    made.scaled += 1
    return extension, content


def packed_image(
    image: Path | bytes, spec: PackSpec, name: str = "", upright: bool = True
) -> tuple[str, bytes | None]:
    """The extension of an image in a pack and its bytes; None stands for those it has.

    It is decoded in any case. Not scaled, arrays (.npy) become PNG, and so does what is stored
    rotated and is to stay so, as packs are read upright. Raises what `decode` raises.
    """
    with opened(image, name, upright=upright) as file:
        known = _EXTENSIONS.get(file.stored.format or "") if upright or not file.rotated else None
        rgb = file.rgb()
    buffer = io.BytesIO()
    if spec.keep or min(rgb.size) <= spec.size:
        if known:
            return known, None
        rgb.save(buffer, "PNG")
        return "png", buffer.getvalue()
    _small(rgb, spec.size).save(buffer, "JPEG", quality=spec.quality)
    return "jpg", buffer.getvalue()


def _small(rgb: Image.Image, size: int) -> Image.Image:
    """An image whose shorter side is no longer than `size`."""
    if min(rgb.size) <= size:
        return rgb
    scale = size / min(rgb.size)
    width, height = (max(size, round(side * scale)) for side in rgb.size)
    return rgb.resize((width, height), Image.Resampling.BICUBIC)


def _leave_out(made: PackSummary, reason: str, id: str, error: CompoclipError) -> None:
    made.left_out[reason] = made.left_out.get(reason, 0) + 1
    made.bad[id] = str(error)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True)
