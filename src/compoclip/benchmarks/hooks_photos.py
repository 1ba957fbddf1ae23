"""Hooks of benchmarks that ask about several photos, or about regions of one.

See `hooks.py` for what a hook is.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from compoclip.archives import opened_zip, place_of_member, zip_members
from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Form, ImageRef
from compoclip.benchmarks.entries import entries
from compoclip.benchmarks.files import by_stem, hash_number
from compoclip.benchmarks.hooks import Rows, Rules
from compoclip.benchmarks.reader import Loading
from compoclip.benchmarks.table import Row
from compoclip.errors import CompoclipError, UsageError, closest
from compoclip.patterns import has_ending
from compoclip.typed import Count

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
    """Split a set of ten photos, in the order of their numbers, into its descriptions."""
    for row in rows:
        part = "static" if row.key.startswith("open-images") else "video"
        if part not in data.parts:
            continue
        folder = files.image_path(data.photos("imagecode/image-sets"), row.key, row.location)
        there = {
            int(match[1]): path
            for stem, path in by_stem([folder]).items()
            if (match := re.fullmatch(r"img(\d{1,6})", stem))
        }
        if len(there) > _TEN:
            raise CompoclipError(
                f"{folder}: {len(there)} photos instead of {_TEN}; unpack the official archive "
                "again"
            )
        if len(there) < _TEN:  # then at least one of these is absent, and counts as missing
            there = {n: there.get(n, folder / f"img{n}.jpg") for n in range(_TEN)}
        photos = tuple(ImageRef(there[number]) for number in sorted(there))
        for place in row.values:
            good = place in map(str, range(_TEN))
            row.require(good, f"{place!r:.80} is no place among {_TEN} photos; {files.OFFICIAL}")
            yield replace(
                row,
                part=part,
                key=f"{row.key}/{place}",
                images=photos,
                values={"text": row.text(place)},
                truth=int(place),
                labels={"set": row.key},
            )


def mmvp_vlm(rows: Rows, data: Loading, *, prompt: str = "a photo of {}") -> Iterator[Row]:
    """Join two rows to a pair. prompt: "{}" stands for the statement."""
    if "{}" not in prompt:
        raise UsageError(f'mmvp_vlm: the prompt {prompt!r} has no "{{}}" for the statement')
    data.stated.append(prompt)
    listed = list(rows)
    seen_ids: set[object] = set()
    for row in listed:
        number = row.text("Question ID").strip()
        whole = re.fullmatch("[0-9]{1,9}", number)
        row.require(whole, f"'Question ID' must be a number; {files.OFFICIAL}")
        row.key = files.identifier({"number": int(number)}, "number", row.location, seen_ids)
        row.folder = row.text("Type").strip()
    patterns = list(dict.fromkeys(row.folder for row in listed))
    named = entries()["mmvp_vlm"]["patterns"]
    by_name = {name: part for part, names in named.items() for name in names}
    parts = {
        pattern: by_name[pattern.lower()] for pattern in patterns if pattern.lower() in by_name
    }
    if not parts and len(patterns) == len(named):
        parts = dict(zip(patterns, named))
    odd = next((pattern for pattern in patterns if pattern not in parts), None)
    if odd is not None:
        hint = closest(odd, [name for name, _ in named.values()])
        raise CompoclipError(f"{listed[0].path}: unknown pattern {odd!r:.80}; {hint}")
    listed[-1].require(len(listed) % 2 == 0, f"the last pair has one row; {files.OFFICIAL}")
    for first, row in zip(listed[::2], listed[1::2]):
        good = (int(row.key), row.folder) == (int(first.key) + 1, first.folder)
        row.require(
            good and int(row.key) % 2 == 0,
            f"number {row.key} after {first.key} is no pair of one pattern; {files.OFFICIAL}",
        )
        texts = [prompt.replace("{}", half.text("Statement")) for half in (first, row)]
        values = {"text 0": texts[0], "text 1": texts[1], "first": first.key, "second": row.key}
        files.image_path(Path(), row.folder, row.location)
        folder = row.folder.replace("{", "{{").replace("}", "}}")
        yield replace(first, values=values, part=parts[row.folder], folder="{images}/" + folder)


# --- EqBen. ---


def eqben(
    rows: Rows, data: Loading, *, cap: Count | None = None, jpg: bool = False
) -> Iterator[Row]:
    """Sort rows by the first folder of their photos.

    cap: most items of a sub-task, those with the smallest hash of their id; None for all (the
    FSC-CLIP paper caps its two largest at random). jpg: the photos are of the JPEG edition."""
    parts = tuple(entries()["eqben"]["parts"])
    folders = ", ".join(f"eqben{name}" for name in parts)
    photos = data.photos("eqben/images")
    by_part: dict[str, list[Row]] = {name: [] for name in parts}
    refs: dict[str, ImageRef] = {}  # photos that several items show are one object
    for row in rows:
        randomised = "image0" not in row.values and "image" in row.values
        row.require(
            not randomised, "this is the randomised annotation; get private_info_global.json"
        )
        names = row.text("image0"), row.text("image1")
        row.part = names[0].partition("/")[0].removeprefix("eqben")
        row.require(row.part in parts, f"{names[0]!r:.80} belongs to no part; known: {folders}")
        texts = {}
        for k in (0, 1):
            listed = row.values.get(f"caption{k}")
            first = isinstance(listed, list) and listed  # a list, of which the first is used
            texts[f"text {k}"] = row.text(f"caption{k}.0" if first else f"caption{k}")
        if row.part not in data.parts:
            continue
        for name in names:
            if name not in refs:
                twin = name.removesuffix(".png") + ".jpg" if name.endswith(".png") else name
                path = files.image_path(photos, twin if jpg else name, row.location)
                absent = not refs and not jpg and twin != name and not path.is_file()
                if absent and (photos / twin).is_file():  # asked of the first photo alone
                    raise UsageError(
                        f"{photos}: these photos are of the JPEG edition; say eqben,jpg=true"
                    )
                refs[name] = ImageRef(path)
        row.images, row.values = tuple(refs[name] for name in names), texts
        row.key = str(len(by_part[row.part]))
        by_part[row.part].append(row)
    if cap is not None:
        data.stated.append(f"cap {cap}")
        data.expected = {name: min(count, cap) for name, count in data.expected.items()}
    if jpg:
        data.stated.append("jpg")

    for items in by_part.values():
        by_hash = sorted(items, key=lambda row: hash_number(f"{row.part}/{row.key}"))
        smallest = {row.key for row in by_hash[:cap]}
        data.left_out[f"items beyond the cap of {cap} a sub-task"] += len(items) - len(smallest)
        yield from (row for row in items if row.key in smallest)


# --- NaturalBench-Retrieval, NegRefCOCOg. ---


def naturalbench(rows: Rows, data: Loading) -> Iterator[Row]:
    """Find photos in the archive, or beside the file."""
    members: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        names = row.text("image_0"), row.text("image_1")
        if has_ending(row.path, ".zip") and data.images is None:
            if not members:
                with opened_zip(row.path) as opened:
                    for info in zip_members(opened):
                        place = place_of_member(row.path, info.filename)
                        if place is not None:
                            members[place.name].append(info.filename)
            inside = [members[PurePosixPath(name).name] for name in names]
            for name, files_of_name in zip(names, inside):
                amount = "two files" if files_of_name else "no file"
                row.require(
                    len(files_of_name) == 1,
                    f"the archive holds {amount} {name!r:.80}; fetch it again",
                )
            row.images = tuple(ImageRef(row.path, member=member) for (member,) in inside)
        else:
            folder = data.images or row.path.parent / "images"
            short = (name.removeprefix("images/") for name in names)
            row.images = tuple(ImageRef(files.image_path(folder, n, row.location)) for n in short)
        yield row


def negrefcocog(rows: Rows, data: Loading) -> Iterator[Row]:
    """Make the regions of one photo the candidates."""
    photos = data.photos("coco/train2014")
    for row in rows:
        photo = files.photo(photos, row.values, "image", row.location)
        region = files.corners(*row.value("ref_bbox"))
        listed = files.items(*row.value("bbox_list"))
        boxes = [files.corners(sides, f"{row.location}: box {k}") for k, sides in enumerate(listed)]
        row.require(
            len(boxes) >= 2 and boxes.count(region) == 1,
            f"'bbox_list' must hold other boxes, and 'ref_bbox' once; {files.OFFICIAL}",
        )
        row.images = tuple(ImageRef(photo.path, box) for box in boxes)
        row.truth = boxes.index(region)
        yield row


# --- Flickr30k-Positions. ---

PAIRS = "_pairs"
"""Suffix of the names of sub-tasks of pairs."""


def positions(rows: Rows, data: Loading, *, up_down_images: Path | None = None) -> Iterator[Row]:
    """Ask each picture for its own caption, and both together as a pair."""
    photos = data.photos("flickr30k/images")
    up_down = up_down_images or data.root / "flickr30k_positions" / "up_down"
    for row in rows:
        part = row.part.removesuffix(PAIRS)
        paths = [PurePosixPath(row.text(k).replace("\\", "/")) for k in ("images", "neg_images")]
        image = ImageRef(files.image_path(photos, paths[0].name, row.location))
        other = replace(image, mirror=True)
        if part == "up_down":
            other = ImageRef(files.image_path(up_down, paths[1].name, row.location))
        texts = row.text("captions"), row.text("neg_captions")
        for name, images, candidates in asked_of_pair((image, other), texts):
            form = Form.CHOOSE_TEXT if name else Form.GROUP
            yield replace(
                row,
                part=part if name else f"{part}{PAIRS}",
                key=f"{part}/{row.number}{name}",
                images=images,
                values=dict(zip(("first", "second"), candidates)),
                table={**row.table, "form": form},
            )


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
    pairs = tuple(part for part in data.parts if part.endswith(PAIRS))
    single = tuple(part for part in data.parts if part not in pairs)
    rules = {score: Aggregate(pairs, metric=score) for score in ("group", "text", "image") if pairs}
    if single:  # questions and pairs have no common mean
        rules |= {"accuracy": Aggregate(single), "macro": Aggregate(single)}
        rules["micro"] = Aggregate(single, "micro")
    return rules
