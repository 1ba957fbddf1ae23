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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import PIL
from PIL import Image

from compoclip.archives import add_member
from compoclip.bounds import MAX_CAPTION_BYTES
from compoclip.console import note, track
from compoclip.data.columns import EXTRA_COLUMNS, MIRROR, NEG_IMAGE
from compoclip.data.decode import (
    Mirrored,
    name_of,
    opened,
    require_readable,
    stored_bytes,
)
from compoclip.data.fingerprint import FILE, Fingerprint
from compoclip.data.options import PackSpec
from compoclip.data.sources import Sample
from compoclip.data.sources.open import Request
from compoclip.differences import require_same
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import (
    LOCK,
    content_hash,
    only_writer,
    read_json,
    read_json_object,
    require_writable,
    write_atomically,
    write_json,
)
from compoclip.typed import Natural, build, read_fields
from compoclip.version import __version__
from compoclip.workers import available_cores

RECORD = "pack.json"
_CONTENT = "content"  # in the record: the name of a shard -> a hash of it
_REMEDY = "delete the folder and pack again"
_ALLOW = "raise --max-bad and go on with the same command"
IMAGE, NEGATIVE = "unreadable image", "unreadable negative image"


@dataclass
class PackSummary:
    """The contents of a pack: counts of samples, images (scaled or as they were, negative images
    included), bytes of the shards, and unreadable images: sample id -> reason."""

    shards: Natural = 0
    samples: Natural = 0
    scaled: Natural = 0
    as_they_were: Natural = 0
    size_bytes: Natural = 0
    left_out: dict[str, Natural] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)

    def add(self, other: PackSummary) -> None:
        """Count another part."""
        for name in ("shards", "samples", "scaled", "as_they_were", "size_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.count(other.left_out)
        self.bad = dict(sorted((self.bad | other.bad).items()))

    def count(self, left_out: Mapping[str, int]) -> None:
        """Count what is left out, by reason."""
        self.left_out = dict(sorted((Counter(self.left_out) + Counter(left_out)).items()))


Run = Callable[[Callable[[int], PackSummary], Sequence[int]], Iterable[PackSummary]]
"""Makes shards, by number, in any order: `map`, or `cluster.run` for processes."""


def pack(
    request: Request,
    out: Path,
    spec: PackSpec,
    run: Run = map,
    max_bad: int = 0,
) -> PackSummary:
    """Write a source to the folder `out` as pack-000000.tar, ..., with a record in pack.json.

    Shards are written whole; an interrupted pack of the same source and spec is resumed. The bytes
    do not depend on `run`.

    Raises UsageError when `out` holds something else, CompoclipError after more than `max_bad`
    unreadable images, when the disk is full and when another process is writing `out`; what is
    finished stays.
    """
    source = request.open()
    data = source.fingerprint()
    values = {
        "source": source.describe(),
        "samples": len(source),
        "orientation": source.orientation,
        "spec": asdict(spec),
        "made_by": {"compoclip": __version__, "pillow": PIL.__version__},
    }
    made_from = Fingerprint({**values, **data.values}, data.rows)
    finished = _finished(out, made_from)
    if finished is not None:  # and may be read while another process reads it
        return finished
    require_writable(out)
    with only_writer(out, folder=True):
        if (finished := _finished(out, made_from)) is not None:
            return finished
        _opened.cache_clear()  # the data may have changed since an earlier pack of this process
        made_from.save(out)
        write_json(out / RECORD, made_from.values)
        shards = [_shard(out, n) for n in range(-(-len(source) // spec.shard_size))]
        total, todo = PackSummary(), []
        for number, shard in enumerate(shards):
            counts = shard.with_suffix(".json")
            try:
                if shard.is_file() and counts.is_file():
                    total.add(build(PackSummary, read_json(counts), str(counts), _REMEDY))
                    continue
            except CompoclipError:
                note(f"{counts}: damaged; {shard.name} is made again")
            todo.append(number)
        if total.shards:
            note(f"resuming: {total.shards} of {len(shards)} shards are there")
        require_readable(total.bad, max_bad, _ALLOW)
        work = partial(pack_shard, request, out, spec, max_bad)
        for part in track(run(work, todo), "packing", len(todo), "shards"):
            total.add(part)
            require_readable(total.bad, max_bad, _ALLOW)
        total.count(source.left_out)
        with ThreadPoolExecutor(available_cores()) as pool:
            hashes = dict(zip((shard.name for shard in shards), pool.map(content_hash, shards)))
        record = {**made_from.values, "packed": asdict(total), _CONTENT: hashes}
        write_json(out / RECORD, record)
        for shard in shards:
            shard.with_suffix(".json").unlink(missing_ok=True)
        return total


def _finished(out: Path, made_from: Fingerprint) -> PackSummary | None:
    """The whole pack that is in `out`; None without one yet, or a part of it."""
    path = out / RECORD
    if not path.is_file():
        if out.is_dir() and any(file.name not in (LOCK, FILE) for file in out.iterdir()):
            raise UsageError(f"{out}: already exists and is not a pack; choose another --out")
        return None
    record = read_json_object(path, damaged=_REMEDY)
    require_same(out, Fingerprint.load(out).differences(made_from), "holds another pack")
    if "packed" not in record:
        return None
    kinds = {**dict.fromkeys(made_from.values, Any), "packed": dict, _CONTENT: dict[str, str]}
    hashes = read_fields(record, kinds, str(path), _REMEDY, others=False)[_CONTENT]
    packed: PackSummary = build(PackSummary, record["packed"], str(path), _REMEDY)
    for name in (name for name in hashes if hashes[name] != content_hash(out / name)):
        note(f"{out / name}: differs from what was packed; packing again")
        return None
    return packed


_opened = lru_cache(1)(Request.open)


def _shard(out: Path, number: int) -> Path:
    """The path of a shard; its counts have the same name with .json until the pack is whole."""
    return out / f"pack-{number:06d}.tar"


def pack_shard(
    request: Request, out: Path, spec: PackSpec, max_bad: int, number: int
) -> PackSummary:
    """Write one shard, and before it its counts."""
    summary, source, size = PackSummary(shards=1), _opened(request), spec.shard_size

    def write(target: Path) -> None:
        first = number * size
        with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
            for index in range(first, min(first + size, len(source))):
                for name, content in _members(source[index], source.upright, spec, summary):
                    add_member(tar, f"{index:08d}.{name}", content)
                require_readable(summary.bad, max_bad, _ALLOW)
        summary.size_bytes = target.stat().st_size
        write_json(_shard(out, number).with_suffix(".json"), asdict(summary))

    write_atomically(_shard(out, number), write)
    return summary


def _members(
    sample: Sample, upright: bool, spec: PackSpec, summary: PackSummary
) -> Iterator[tuple[str, bytes]]:
    """The tar members of a sample: the part of the name after the key, and the bytes."""
    row: dict[str, Any] = {"id": sample.id, "caption": sample.captions}
    extras = {column: getattr(sample, name, None) for column, name in EXTRA_COLUMNS.items()}
    row |= {column: value for column, value in extras.items() if value not in ((), "", None)}
    summary.samples += 1
    negative = sample.negative_image
    if isinstance(negative, Mirrored):  # stored as it is; not at all if it is the sample's image
        row[MIRROR] = True
        negative = None if negative.image == sample.image else negative.image
    images = {"": sample.image, f"{NEG_IMAGE}.": negative}
    for prefix, image in images.items():
        if image is None or "left_out" in row:
            continue
        try:
            name = name_of(sample.id, image)
            extension, content = packed_image(image, spec, name, upright)
        except CompoclipError as error:
            summary.bad[f"{sample.id} (negative image)" if prefix else sample.id] = str(error)
            summary.count({NEGATIVE if prefix else IMAGE: 1})
            if prefix:
                row.pop(MIRROR, None)
            else:
                row["left_out"] = str(error)
            continue
        summary.as_they_were += content is None
        summary.scaled += content is not None
        if content is None:
            content = stored_bytes(image)
        yield f"{prefix}{extension}", content
    text = json.dumps(row, ensure_ascii=False).encode()
    if len(text) > MAX_CAPTION_BYTES:
        raise CompoclipError(f"{sample.id}: {len(text)} bytes of captions; shorten them")
    yield "json", text


def packed_image(
    image: Path | bytes, spec: PackSpec, name: str = "", upright: bool = True
) -> tuple[str, bytes | None]:
    """Return the extension and bytes of an image in a pack; None as bytes keeps the stored ones.

    Images are decoded in any case. If not scaled, arrays (.npy) become PNG, and so do rotated
    images that are to stay as stored, since packs are read upright. Raises what `decode` raises.
    """
    with opened(image, name, upright=upright) as file:
        ending = file.ending if upright or not file.rotated else ""
        rgb = file.rgb()
    buffer = io.BytesIO()
    if spec.keep or min(rgb.size) <= spec.size:
        if ending:
            return ending, None
        rgb.save(buffer, "PNG")
        return "png", buffer.getvalue()
    scale = spec.size / min(rgb.size)
    width, height = (max(spec.size, round(side * scale)) for side in rgb.size)
    rgb = rgb.resize((width, height), Image.Resampling.BICUBIC)
    rgb.save(buffer, "JPEG", quality=spec.quality)
    return "jpg", buffer.getvalue()
