"""What no entry of `benchmarks.yaml` can say: small functions that single benchmarks name there.

A function of rows yields those that become items, changed where it has to; a function of a finished
`Loading` returns the rules that depend on its items.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path, PurePosixPath

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, ImageRef
from compoclip.benchmarks.entries import each_value, files_of
from compoclip.benchmarks.files import by_stem, close
from compoclip.benchmarks.reader import Loading
from compoclip.benchmarks.table import Row, readers
from compoclip.errors import CompoclipError, UsageError, shown

Rows = Iterable[Row]
Rules = dict[str, Aggregate]


def winoground_tags(data: Loading) -> Rules:
    """Split the group score by the collapsed tag."""
    found = each_value(data, ("winoground",), "collapsed_tag")
    return {f"group_{tag.lower()}": rule for tag, rule in found.items()}


def colorswap(rows: Rows, data: Loading, *, split: str = "test") -> Iterator[Row]:
    """Name another split than the test in the results."""
    sizes = {"test": 300, "train": 700}
    if split not in sizes:
        raise UsageError(f"colorswap has no split {split!r}; {close(split, sizes)}")
    data.expected = {"colorswap": sizes[split]}
    if split != "test":
        data.name += f"_{split}"
    yield from rows


# --- VALSE. ---

_VALSE_SETS = {"visual7w": "{visual7w}", "SWiG": "{swig}", "coco2017": "{coco}/val2017"}
_VALSE_NAMES = {
    "COCO_train2014_": "{coco}/train2014",
    "COCO_val2014_": "{coco}/val2014",
    "VisualDialog_val2018_": "{visdial}",
}


def valse(rows: Rows, data: Loading) -> Iterator[Row]:
    """Take the rows that two annotators found right; photos lie with their data set."""
    for row in rows:
        if row.float("mturk.caption") < 2:
            data.left_out["rows that fewer than two annotators found right"] += 1
            continue
        source, name = row.text("dataset"), row.text("image_file")
        by_name = next((v for k, v in _VALSE_NAMES.items() if name.startswith(k)), "")
        row.folder = _VALSE_SETS.get(source.replace("_", ""), by_name)
        if not row.folder and data.images is None:
            raise CompoclipError(
                f"{row.where}: photo {name!r:.80} of data set {source!r:.80} is of no known "
                "source; is this the official file?"
            )
        yield row


# --- VSR. ---

_LEAST = 20
"""Statements of a relation in a split that make it a rule of its own."""


def vsr(rows: Rows, data: Loading) -> Iterator[Row]:
    """Check labels, and find the folder that the address of a photo names."""
    kinds: dict[Path, set[int]] = {}
    for row in rows:
        label = files.field(row.values, "label", row.where)
        if isinstance(label, bool) or label not in (0, 1):
            raise CompoclipError(f"{row.where}: 'label' must be 0 or 1, not {shown(label)}")
        row.truth = int(label)
        row.labels = {"label": "true" if label else "false"}
        kinds.setdefault(row.path, set()).add(row.truth)
        if data.images is None:
            folder = PurePosixPath(row.text("image_link")).parent.name
            if folder not in ("train2017", "val2017"):
                raise CompoclipError(
                    f"{row.where}: 'image_link' {shown(row.values['image_link'])} names neither "
                    "train2017 nor val2017; give the folder of the photos as images"
                )
            row.folder = f"{{images}}/{folder}"
        yield row
    for path, found in kinds.items():
        if found != {0, 1}:
            raise CompoclipError(f"{path}: holds no true or no false statements; {files.OFFICIAL}")


def vsr_rules(data: Loading) -> Rules:
    """Return balanced accuracy, and areas by relation where both kinds of statement are there."""
    parts = data.parts
    balanced = [Aggregate((part,), macro_by="label", metric="accuracy") for part in parts]
    rules = {"balanced_accuracy": Aggregate(tuple(balanced))}
    counts = Counter((case.subtask, case.labels["relation"]) for case in data.cases)
    kinds = Counter(
        (s, r) for s, r, _ in {(c.subtask, c.labels["relation"], c.truth) for c in data.cases}
    )
    both = {
        part: [name for s, name in kinds if s == part and kinds[s, name] == 2] for part in parts
    }
    if all(both.values()):
        means = [Aggregate((part,), macro_by="relation") for part in parts]
        rules["relations"] = Aggregate(tuple(means))
    for part in parts:
        for name, rule in each_value(data, (part,), "relation").items():
            if name in both[part] and counts[part, name] >= _LEAST:
                rules[f"{part}: {name}"] = rule
    return rules


# --- What'sUp. ---

_POSITIONS = {
    "controlled_a": {"left": "beside", "right": "beside", "on": "over", "under": "over"},
    "controlled_b": {"left": "beside", "right": "beside", "in-front": "deep", "behind": "deep"},
}
_WORDS = ("left", "right", "above", "below", "front", "behind", "top", "bottom")


def whatsup(rows: Rows, data: Loading) -> Iterator[Row]:
    """Label items with their relation; controlled photos with their pair and set of positions."""
    for part, group in groupby(rows, lambda row: row.part):
        if part in _POSITIONS:
            yield from _controlled(list(group), _POSITIONS[part])
            continue
        for row in group:
            words = row.text("true text").lower().rstrip(".").split()
            relation = next((word for word in _WORDS if word in words), "")
            row.labels = {"relation": relation} if relation else {}
            yield row


def _controlled(rows: list[Row], kinds: Mapping[str, str]) -> Iterator[Row]:
    """The labels "pair" and "set" are for groups that hold each of their positions once."""
    places = []
    for row in rows:
        name = PurePosixPath(row.text("image_path")).name
        words = PurePosixPath(name).stem.split("_")
        if len(words) < 3 or words[1] not in kinds:
            raise CompoclipError(
                f"{row.where}: image name {name!r:.80} tells no position; expected "
                f"<thing>_<{'|'.join(kinds)}>[_of]_<thing>"
            )
        places.append((f"{words[0]} {words[-1]}", words[1]))
    counts = Counter(places)
    for row, (things, position) in zip(rows, places):
        whole = {each: counts[things, each] == 1 for each in kinds}
        row.labels = {"relation": position}
        if all(whole[each] for each, kind in kinds.items() if kind == kinds[position]):
            row.labels["pair"] = f"{things} {kinds[position]}"
        if all(whole.values()):
            row.labels["set"] = things
        yield row


def whatsup_groups(data: Loading) -> Rules:
    """Return the shares of pairs and sets, where the files hold any."""
    labels = {label for case in data.cases for label in case.labels}
    return {
        each: Aggregate(tuple(_POSITIONS), metric=each)
        for each in ("pair", "set")
        if each in labels
    }


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
    parts = readers()["eqben"].meta.parts
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
    for part, items in found.items():
        kept = items
        if cap is not None:
            key = {row.key: f"{part}/{row.key}".encode() for row in items}
            hashes = {k: hashlib.blake2b(v, digest_size=8).digest() for k, v in key.items()}
            smallest = set(sorted(hashes, key=hashes.__getitem__)[:cap])
            kept = [row for row in items if row.key in smallest]
        data.left_out[f"items beyond the cap of {cap} a sub-task"] += len(items) - len(kept)
        yield from kept


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


# --- VL-CheckList. ---


def vl_checklist(rows: Rows, data: Loading, *, limit: int | None = 1000) -> Iterator[Row]:
    """Take the first rows of each file. limit: first items to take of each file, None for all."""
    if limit is not None and limit < 1:
        raise UsageError(f"vl_checklist: limit must be at least 1, or none for all, not {limit}")
    data.stated.append(f"limit {limit}")
    for row in rows:
        if limit is not None and row.number > limit:
            data.left_out[f"items beyond the first {limit} of their file"] += 1
            continue
        source = row.names["source"]
        row.folder = f"{{{'vg' if source == 'vaw' else source}}}"
        yield row


def vl_checklist_rules(data: Loading) -> Rules:
    """Return the mean over sources of the mean over files, of sub-tasks and their groups."""
    entry = readers()["vl_checklist"].entry
    rules: Rules = {}
    for part in readers()["vl_checklist"].meta.parts:
        source_of = {each.names["file"]: each.names["source"] for each in files_of(entry, part)}
        sources = []
        for source in dict.fromkeys(source_of.values()):
            others = frozenset(file for file, other in source_of.items() if other != source)
            sources.append(Aggregate((part,), macro_by="file", exclude=others))
        rules[part] = Aggregate(tuple(sources))
    groups = {
        name: Aggregate(tuple(rule for part, rule in rules.items() if part.startswith(f"{name}_")))
        for name in ("object", "attribute", "relation")
    }
    return {"vl_compo": Aggregate(tuple(groups.values())), **groups, **rules}


# --- CREPE. ---

TOTALS = {"atom": (16727, 17698), "swap": (6652, 7405), "negate": (16336, 17303)}
"""Rows of complexities 4 to 12 as published, and rows behind the published scores of vl_compo."""


def crepe_prod(rows: Rows, data: Loading) -> Iterator[Row]:
    """Expect the smallest published total of each type that is no less than what was read."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.part] += 1
        yield row
    data.expected = expected_rows(counts, data.parts)


def expected_rows(here: Mapping[str, int], parts: Iterable[str]) -> dict[str, int]:
    """Return the published total of each sub-task that fits a number of rows."""
    return {
        name: next((total for total in TOTALS[name] if total >= here[name]), here[name])
        for name in parts
    }


def crepe_curves(data: Loading) -> Rules:
    """Return the curves over the complexities that are there."""
    curves = {part: each_value(data, (part,), "complexity") for part in data.parts}
    rules: Rules = {}
    for level in sorted({level for curve in curves.values() for level in curve}, key=int):
        here = {part: curve[level] for part, curve in curves.items() if level in curve}
        rules |= {f"{part}_complexity_{level}": rule for part, rule in here.items()}
        if "atom" in here and "swap" in here:
            rules[f"complexity_{level}"] = Aggregate((here["atom"], here["swap"]))
    return rules


def crepe_syst(
    rows: Rows, data: Loading, *, pretrained: str | None = None, annotations: Path | None = None
) -> Iterator[Row]:
    """Split rows by the kinds of their negatives.

    pretrained: what the models to be measured were pre-trained on, e.g. cc12m."""
    sets = ("cc12m", "yfcc", "laion")
    if pretrained is None:
        raise UsageError(
            "crepe_syst is about compounds seen in pre-training: say what the model was "
            f"pre-trained on, as crepe_syst,pretrained=SET with SET one of {', '.join(sets)}"
        )
    folder = annotations or data.root / "crepe" / "syst_hard_negatives"
    known = {*sets, *(path.stem.rpartition("_in_")[2] for path in folder.glob("*_in_*.csv"))}
    if pretrained not in known:
        raise UsageError(
            f"crepe_syst: no pre-training set {pretrained!r}; {close(pretrained, sorted(known))}"
        )
    data.name += f"_{pretrained}"
    data.stated.append(f"pretrained {pretrained}")
    found: dict[str, list[Row]] = {name: [] for name in data.parts}
    for row in rows:
        for part in found:
            kind, _, seen = part.partition("_")
            if seen != row.part.partition("_")[2]:
                continue
            column = f"valid_hard_negs_{kind}"
            if not row.texts(f"{column}*"):
                data.left_out[f"rows without {kind} negatives"] += 1
                continue
            values = {**row.values, "negatives": row.values[column]}
            found[part].append(replace(row, part=part, values=values))
    for listed in found.values():
        yield from listed


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
