"""Hooks of benchmarks that ask about several photos, or about regions of one.

See `hooks.py` for what a hook is.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Form, ImageRef
from compoclip.benchmarks.entries import entries
from compoclip.benchmarks.files import by_stem
from compoclip.benchmarks.hooks import Rows, Rules
from compoclip.benchmarks.reader import SCORES, Loading
from compoclip.benchmarks.table import Row
from compoclip.errors import CompoclipError, UsageError

# --- SVO-Probes, ImageCoDe, MMVP-VLM. ---


def svo_probes(rows: Rows, data: Loading) -> Iterator[Row]:
    """Sort rows by their one flag, and name photos by their addresses."""
    for row in rows:
        flagged = [name for name in ("subj", "verb", "obj") if row.flag(f"{name}_neg")]
        if len(flagged) != 1:
            data.left_out["rows with several flags" if flagged else "rows without a flag"] += 1
            continue
        (row.part,) = flagged
        named = {"right": url_key(row.text("pos_url")), "wrong": url_key(row.text("neg_url"))}
        row.values = {**row.values, **named}
        yield row


def url_key(url: str) -> str:
    """Return the name, without suffix, of a stored photo: the md5 of its address."""
    return hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()


_TEN = 10


def imagecode(rows: Rows, data: Loading) -> Iterator[Row]:
    """Split a set of ten photos into its descriptions, each of one photo."""
    for row in rows:
        part = "static" if row.key.startswith("open-images") else "video"
        if part not in data.parts:
            continue
        folder = data.photos("imagecode/image-sets")
        photos = _ten(files.image_path(folder, row.key, row.where))
        for place in row.values:
            if place not in map(str, range(_TEN)):
                raise CompoclipError(
                    f"{row.where}: {place!r:.80} is no place among {_TEN} photos; {files.OFFICIAL}"
                )
            yield replace(
                row,
                part=part,
                key=f"{row.key}/{place}",
                images=photos,
                values={"text": row.text(place)},
                truth=int(place),
                labels={"set": row.key},
            )


def _ten(folder: Path) -> tuple[ImageRef, ...]:
    """The ten photos of a set in the order of their numbers."""
    there = {
        int(match[1]): path
        for stem, path in by_stem([folder]).items()
        if (match := re.fullmatch(r"img(\d{1,6})", stem))
    }
    if len(there) > _TEN:
        raise CompoclipError(
            f"{folder}: {len(there)} photos instead of {_TEN}; unpack the official archive again"
        )
    if len(there) < _TEN:  # then at least one of these is absent, and counts as missing
        there = {n: there.get(n, folder / f"img{n}.jpg") for n in range(_TEN)}
    return tuple(ImageRef(there[number]) for number in sorted(there))


_PATTERNS = {
    "orientation": ("orientation and direction", "orientation"),
    "presence": ("presence of specific features", "presence"),
    "state": ("state and condition", "state"),
    "quantity": ("quantity and count", "quantity"),
    "position": ("positional and relational context", "spatial"),
    "color": ("color and appearance", "color"),
    "structure": ("structural characteristics", "structural character"),
    "texts": ("texts", "text"),
    "viewpoint": ("viewpoint and perspective", "camera perspective"),
}
"""Sub-task -> its name in the paper, its folder."""


def mmvp_vlm(rows: Rows, data: Loading, *, prompt: str = "a photo of {}") -> Iterator[Row]:
    """Join two rows to a pair. prompt: "{}" stands for the statement."""
    if "{}" not in prompt:
        raise UsageError(f'mmvp_vlm: the prompt {prompt!r} has no "{{}}" for the statement')
    data.stated.append(prompt)
    listed = list(rows)
    seen: set[object] = set()
    for row in listed:
        if not re.fullmatch("[0-9]{1,9}", row.text("Question ID").strip()):
            raise CompoclipError(f"{row.where}: 'Question ID' must be a number; {files.OFFICIAL}")
        row.key = files.identifier(
            {"number": int(row.text("Question ID"))}, "number", row.where, seen
        )
        row.folder = row.text("Type").strip()
    known = _patterns(list(dict.fromkeys(row.folder for row in listed)), listed[0].path)
    if len(listed) % 2:
        raise CompoclipError(f"{listed[-1].where}: the last pair has one row; {files.OFFICIAL}")
    for first, row in zip(listed[::2], listed[1::2]):
        if (int(row.key), row.folder) != (int(first.key) + 1, first.folder) or int(row.key) % 2:
            raise CompoclipError(
                f"{row.where}: number {row.key} of {row.folder!r:.80} after {first.key} of "
                f"{first.folder!r:.80} is no pair; expected an odd number and the next one, of one "
                "pattern"
            )
        texts = [prompt.replace("{}", each.text("Statement")) for each in (first, row)]
        names = {"text 0": texts[0], "text 1": texts[1], "first": first.key, "second": row.key}
        files.image_path(Path(), row.folder, row.where)
        folder = row.folder.replace("{", "{{").replace("}", "}}")
        yield replace(first, values=names, part=known[row.folder], folder="{images}/" + folder)


def _patterns(folders: list[str], path: Path) -> dict[str, str]:
    """Pattern as written in the file -> sub-task."""
    by_name = {name: subtask for subtask, names in _PATTERNS.items() for name in names}
    known = {each: by_name[each.lower()] for each in folders if each.lower() in by_name}
    if not known and len(folders) == len(_PATTERNS):
        return dict(zip(folders, _PATTERNS))
    for each in folders:
        if each not in known:
            names = ", ".join(name for name, _ in _PATTERNS.values())
            raise CompoclipError(f"{path}: unknown pattern {each!r:.80}; known: {names}")
    return known


# --- EqBen. ---


def eqben(rows: Rows, data: Loading, *, cap: int | None = None, jpg: bool = False) -> Iterator[Row]:
    """Sort rows by the first folder of their photos.

    cap: most items of a sub-task, those with the smallest hash of their id; None for all (the
    FSC-CLIP paper caps its two largest at random). jpg: the photos are of the JPEG edition."""
    if cap is not None and cap < 1:
        raise UsageError(f"eqben: cap must be at least 1, not {cap}; leave it out for all items")
    parts = tuple(entries()["eqben"]["parts"])
    found: dict[str, list[Row]] = {name: [] for name in parts}
    refs: dict[str, ImageRef] = {}  # photos that several items show are one object
    for row in rows:
        if "image0" not in row.values and "image" in row.values:
            raise CompoclipError(
                f"{row.where}: this is the randomised annotation, whose key is not public; get "
                "private_info_global.json"
            )
        names = row.text("image0"), row.text("image1")
        row.part = names[0].partition("/")[0].removeprefix("eqben")
        if row.part not in parts:
            raise CompoclipError(
                f"{row.where}: {names[0]!r:.80} belongs to no known part; known first folders: "
                f"{', '.join(f'eqben{name}' for name in parts)}"
            )
        texts = {f"text {k}": row.text(_first(row, f"caption{k}")) for k in (0, 1)}
        if row.part not in data.parts:
            continue
        for name in names:
            if name not in refs:
                refs[name] = _eqben_photo(data, name, jpg, row.where, check=not refs)
        row.images, row.values = tuple(refs[name] for name in names), texts
        row.key = str(len(found[row.part]))
        found[row.part].append(row)
    if cap is not None:
        data.stated.append(f"cap {cap}")
        data.expected = {name: min(count, cap) for name, count in data.expected.items()}
    data.stated += ["jpg"] * jpg
    for items in found.values():
        kept = items
        if cap is not None:
            smallest = sorted(items, key=lambda row: _digest(f"{row.part}/{row.key}"))[:cap]
            chosen = {row.key for row in smallest}
            kept = [row for row in items if row.key in chosen]
        data.left_out[f"items beyond the cap of {cap} a sub-task"] += len(items) - len(kept)
        yield from kept


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=8).digest()


def _first(row: Row, column: str) -> str:
    """A caption may be a list, of which the first is used."""
    listed = row.values.get(column)
    return f"{column}.0" if isinstance(listed, list) and listed else column


def _eqben_photo(data: Loading, name: str, jpg: bool, where: str, check: bool) -> ImageRef:
    photos = data.photos("eqben/images")
    if not name.endswith(".png"):
        return ImageRef(files.image_path(photos, name, where))
    twin = name.removesuffix(".png") + ".jpg"
    path = files.image_path(photos, twin if jpg else name, where)
    if check and not jpg and not path.is_file() and (photos / twin).is_file():
        raise UsageError(f"{photos}: these photos are of the JPEG edition; say eqben,jpg=true")
    return ImageRef(path)


# --- NaturalBench-Retrieval, NegRefCOCOg. ---


def naturalbench(rows: Rows, data: Loading) -> Iterator[Row]:
    """Find photos in the archive, or beside the file."""
    members: dict[str, str] = {}
    for row in rows:
        names = row.text("image_0"), row.text("image_1")
        if row.path.suffix.lower() == ".zip" and data.images is None:
            members = members or _members(row.path)
            refs = [_member(row, members, name) for name in names]
        else:
            folder = data.images or row.path.parent / "images"
            short = [name.removeprefix("images/") for name in names]
            refs = [ImageRef(files.image_path(folder, name, row.where)) for name in short]
        row.images = tuple(refs)
        yield row


def _members(archive: Path) -> dict[str, str]:
    """File name -> member, of the photos in the archive."""
    with zipfile.ZipFile(archive) as opened:  # read_members has been through its directory
        names = [name for name in opened.namelist() if "__MACOSX" not in name]
    return {PurePosixPath(name).name: name for name in names if not name.endswith("/")}


def _member(row: Row, members: Mapping[str, str], name: str) -> ImageRef:
    found = members.get(PurePosixPath(name).name)
    if found is None:
        raise CompoclipError(f"{row.where}: the archive holds no {name!r:.80}; fetch it again")
    return ImageRef(row.path, member=found)


def negrefcocog(rows: Rows, data: Loading) -> Iterator[Row]:
    """Make the regions of one photo the candidates."""
    photos = data.photos("coco/train2014")
    for row in rows:
        photo = files.photo(photos, row.values, "image", row.where)
        own = _corners(*row.value("ref_bbox"))
        listed = files.items(*row.value("bbox_list"))
        boxes = [_corners(each, f"{row.where}: box {k}") for k, each in enumerate(listed)]
        if len(boxes) < 2 or boxes.count(own) != 1:
            raise CompoclipError(
                f"{row.where}: 'bbox_list' must hold at least two boxes and 'ref_bbox' once, found "
                f"{len(boxes)} and {boxes.count(own)} times; {files.OFFICIAL}"
            )
        row.images = tuple(ImageRef(photo.path, box) for box in boxes)
        row.truth = boxes.index(own)
        yield row


def _corners(value: object, where: str) -> tuple[float, float, float, float]:
    """(left, upper, right, lower) of a list [x, y, width, height]."""
    row = files.items(value, where)
    if len(row) != 4:
        raise CompoclipError(f"{where}: expected [x, y, width, height], found {len(row)}")
    return files.box({f"bbox_{name}": each for name, each in zip("xywh", row)}, where)


# --- Flickr30k-Positions. ---

PAIRS = "_pairs"
"""What the name of a sub-task of pairs ends with."""


def positions(rows: Rows, data: Loading, *, up_down_images: Path | None = None) -> Iterator[Row]:
    """Ask each picture for its own caption, and both together as a pair."""
    photos = data.photos("flickr30k/images")
    made = up_down_images or data.root / "flickr30k_positions" / "up_down"
    for row in rows:
        part = row.part.removesuffix(PAIRS)
        names = [PurePosixPath(row.text(k).replace("\\", "/")).name for k in _POSITION_IMAGES]
        own = ImageRef(files.image_path(photos, names[0], row.where))
        other = replace(own, mirror=True)
        if part == "up_down":
            other = ImageRef(files.image_path(made, names[1], row.where))
        texts = row.text("captions"), row.text("neg_captions")
        for name, images, candidates in asked_of_pair((own, other), texts):
            form = Form.CHOOSE_TEXT if name else Form.GROUP
            yield replace(
                row,
                part=part if name else f"{part}{PAIRS}",
                key=f"{part}/{row.number}{name}",
                images=images,
                values=dict(zip(("first", "second"), candidates)),
                table={**row.table, "form": form},
            )


_POSITION_IMAGES = ("images", "neg_images")
Asked = tuple[str, tuple[ImageRef, ...], tuple[str, str]]


def asked_of_pair(images: Sequence[ImageRef], texts: tuple[str, str]) -> Iterator[Asked]:
    """Yield (end of the id, images, texts with the right one first) of what a pair is asked.

    images: the picture of the first text, and perhaps that of the second.
    """
    for name, image, candidates in zip(("/own", "/other"), images, (texts, texts[::-1])):
        yield name, (image,), candidates
    if len(images) == 2:
        yield "", tuple(images), texts


def positions_rules(data: Loading) -> Rules:
    """Return the means of single questions and, apart from them, of pairs."""
    single = tuple(part for part in data.parts if not part.endswith(PAIRS))
    pairs = tuple(part for part in data.parts if part.endswith(PAIRS))
    rules = {score: Aggregate(pairs, metric=score) for score in SCORES if pairs}
    if single:  # questions and pairs have no common mean
        rules |= {"accuracy": Aggregate(single), "macro": Aggregate(single)}
        rules["micro"] = Aggregate(single, "micro")
    return rules
