"""The ground of real photos: two cuts of Flickr8k as one data set, and benchmarks made of them.

    python -m lab.photos DATA FOLDER [--dev 400] [--draw 0]

writes the photos of DATA/photos/flickr8k and DATA/photos/flickr8k_more into FOLDER, all in equal
terms: 160 pixels a side, WebP of quality 65 (the former are larger JPEGs, and are reduced; the
latter are copied).

    FOLDER/images/NAME.webp         every photo
    FOLDER/Flickr8k.token.txt       five captions each
    FOLDER/Flickr_8k.trainImages.txt, devImages.txt, testImages.txt
    FOLDER/photos.jsonl             the train photos as a table: image, caption
    FOLDER/dev.jsonl, test.jsonl    the others, from which `rewrites:FILE` makes items
    FOLDER/sides.jsonl              the same, and every caption that tells left from right five
                                    times: image, caption, neg_caption (of its mirror image), mirror
    FOLDER/twins.jsonl              the same, and two photos side by side with their exchange:
                                    image, caption, neg_caption, neg_image (`lab.twins`)
    FOLDER/twins/SPLIT/             images and strict pairs of each split
    FOLDER/data.json                what it was made from

dev is a fixed part of the official train photos, those with the smallest hashes of their names: no
model trains on them, neither the base nor an arm, and learning rates are chosen by them. test is
the official one. With --draw N above 0, as many test and dev photos are drawn from all.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from compoclip.benchmarks.retrieval import Captioned, read_flickr8k
from compoclip.console import end_with, note, track
from compoclip.data.prompts import read_names
from compoclip.errors import CompoclipError
from compoclip.files import new_folder, read_json, write_text
from compoclip_world.bounds import TEXT_ONLY, UNTRAINED
from lab.columns import Column
from lab.ground import CHOICE_SUITE, DATA, SUITE, Ground, require_benchmarks
from lab.twins import EXAMPLES, TWINS, write_twins

if TYPE_CHECKING:
    from lab.settings import LabSettings

SIDE, QUALITY = 160, 65
TOKENS, TABLE, SIDES = "Flickr8k.token.txt", "photos", "sides"
SPLITS = ("train", "dev", "test")
_CUTS = ("flickr8k", "flickr8k_more")
_ABOUT = "data.json"
_REMEDY = "name the folder that holds photos/flickr8k and photos/flickr8k_more"

# --- The benchmarks: ids in the suite. Those of captions alone choose learning rates as well. ---

RETRIEVAL, REWRITES, PAIRS = "photo-retrieval", "photo-rewrites", "photo-twins"
OWN = (RETRIEVAL, REWRITES)
_MADE = {  # column -> sub-task and metric of the rewrites; negation needs no image
    "object": ("replace_object", "accuracy"),
    "attribute": ("replace_attribute", "accuracy"),
    "binding": ("swap_attribute", "accuracy"),
    "relation": ("replace_relation", "accuracy"),
    "role": ("swap_object", "accuracy"),
    "order": ("order", "accuracy"),
    "augmented": ("paraphrase", "augmented"),
    "brittleness": ("paraphrase", "brittleness"),
}
_COLUMNS = (
    *(Column(name, (), metric, part, (REWRITES,)) for name, (part, metric) in _MADE.items()),
    Column("SC", (), "accuracy", benchmarks=("sugarcrepe",)),
    Column("SC++", (), "augmented", benchmarks=("sugarcrepe_pp",)),
    Column("TOT-replace", (), "augmented", "replace_*", ("sugarcrepe_pp_tot",)),
    Column("TOT-swap", (), "augmented", "swap_*", ("sugarcrepe_pp_tot",)),
    Column("zero-shot", (), "accuracy", benchmarks=("caltech101", "eurosat")),
    Column("i2t", (), "r1", "i2t", (RETRIEVAL,)),
    Column("t2i", (), "r1", "t2i", (RETRIEVAL,)),
)


@dataclass(frozen=True)
class Photos(Ground):
    """Captioned photos, and what can be asked of them and of the annotations beside them.

    data: the folder that holds photos, annotations and classification sets. dev: train photos that
    are held out. draw: of the split, 0 for the official one. The image tower is frozen: a few
    thousand photos can only make it worse, and so its features of a photo are computed once.
    """

    data: str = ""
    dev: int = 400
    draw: int = 0

    name = "photo-lab"
    tables = (TABLE, SIDES, TWINS)
    columns = _COLUMNS
    bounds = (TEXT_ONLY, UNTRAINED)
    kept = "retrieval"
    shown = ("role", "order", "augmented", "TOT-replace", "t2i")
    legend = (
        "object, attribute, relation: a caption against itself with one such word replaced; "
        "binding, role: with two attributes or things exchanged; augmented, brittleness: against "
        "that and beside its rewording. SC, SC++: SugarCrepe and SugarCrepe++ with the photos at "
        "hand; TOT: SugarCrepe++ as texts alone, in full. zero-shot: Caltech-101 and EuroSAT. "
    )
    partial = True

    def prepare(self, settings: LabSettings, out: Path, choosing: bool) -> None:
        """Write the photos, and a list of benchmarks for each of the splits test and dev."""
        absent = [name for name in OWN if name not in settings.benchmarks]
        if absent:
            raise CompoclipError(
                f"learning rates are chosen by {', '.join(OWN)}: add {absent[0]} to the settings' "
                "benchmarks"
            )
        if not self.data:
            raise CompoclipError("a lab of photos needs the folder that holds them: --photos DATA")
        data = Path(self.data).resolve()
        write_photos(out / DATA, data, self.dev, self.draw)
        split = {"test": "test", "val": "dev"}[settings.split]
        self._suite(settings, out, SUITE, split, settings.items)
        if choosing:
            self._suite(settings, out, CHOICE_SUITE, "dev", settings.choice_items)

    def _suite(self, settings: LabSettings, out: Path, folder: str, split: str, items: int) -> None:
        """Write suite.json anew: it names files of the user's, who may have moved them."""
        place, photos = (out / folder).resolve(), (out / DATA).resolve()
        place.mkdir(parents=True, exist_ok=True)
        listed = [*_of_captions(photos, split, items)]
        if split == "test":
            listed += _of_files(Path(self.data).resolve(), place, settings.benchmarks)
            require_benchmarks(settings, [each["id"] for each in listed], place)
        wanted = self.measured(settings, split != "test")
        chosen = [each for each in listed if each["id"] in wanted]
        write_text(place / "suite.json", json.dumps({"benchmarks": chosen}, indent=1) + "\n")

    def about(self, settings: LabSettings) -> str:
        """Say how many photos are held out, and how many items there are."""
        return (
            f"The photos have {SIDE} pixels a side. {self.dev} photos of train are held out for "
            f"the choice of rates. A sub-task has at most {settings.items} rewrites. The image "
            "tower is frozen."
        )

    def measured(self, settings: LabSettings, choosing: bool) -> tuple[str, ...]:
        """Rates are chosen by what captions alone give: other files have but one split."""
        names = (*OWN, PAIRS)
        return tuple(name for name in settings.benchmarks if not choosing or name in names)

    def columns_for(self, settings: LabSettings, choosing: bool) -> tuple[Column, ...]:
        """Those of the benchmarks that are measured: annotations may not be at hand."""
        measured = self.measured(settings, choosing)
        return tuple(c for c in self.columns if not set(c.benchmarks).isdisjoint(measured))


def _of_captions(photos: Path, split: str, items: int) -> list[dict[str, Any]]:
    """The benchmarks made of the captions of a split."""
    files = {"annotations": str(photos / TOKENS), "split_file": str(photos / _list_of(split))}
    table = {"annotations": str(photos / f"{split}.jsonl"), "most": items}
    images, twins = str(photos / "images"), photos / TWINS / split
    pairs = {"annotations": str(twins / EXAMPLES)}
    return [
        {"name": "retrieval:flickr8k", "id": RETRIEVAL, "images": images, "options": files},
        {"name": "rewrites", "id": REWRITES, "images": str(photos), "options": table},
        {"name": "winoground", "id": PAIRS, "images": str(twins / "images"), "options": pairs},
    ]


def _of_files(data: Path, place: Path, wanted: Sequence[str]) -> list[dict[str, Any]]:
    """The benchmarks of the files beside the photos, and of them those that are wanted."""
    coco, classes = data / "photos/sugarcrepe_coco/images", data / "classification"
    prompts = classes / "class_names_templates"
    names = prompts / "clip_benchmark_en_classnames.json"
    templates = str(prompts / "clip_benchmark_en_zeroshot_classification_templates.json")
    made: list[dict[str, Any]] = [
        {
            "name": name,
            "id": name,
            "images": str(coco),
            "options": {"annotations": str(data / "annotations" / name.removesuffix("_tot"))},
        }
        for name in ("sugarcrepe", "sugarcrepe_pp", "sugarcrepe_pp_tot")
    ]
    for name in ("caltech101", "eurosat"):
        options = {"templates": templates, "classes": str(names)}
        if name == "caltech101" and name in wanted:
            options["index"] = str(_caltech_index(classes / name, names, place))
            del options["classes"]
        images = str(classes / name)
        made.append({"name": f"zero_shot:{name}", "id": name, "images": images, "options": options})
    for each in made:
        if each["id"] in wanted:
            for path in (each["images"], *each["options"].values()):
                if not Path(path).exists():
                    raise CompoclipError(
                        f"{path}: not there; leave {each['id']} out of the settings' benchmarks"
                    )
    return made


def _caltech_index(folder: Path, names: Path, place: Path) -> Path:
    """The class names of Caltech-101's directories, which begin after "background"."""
    if not folder.is_dir():
        raise CompoclipError(f"{folder}: not there; leave caltech101 out of the benchmarks")
    directories = sorted(each.name for each in folder.iterdir() if each.is_dir())
    known = read_names(names, "caltech101")[1:]
    if len(known) != len(directories):
        raise CompoclipError(
            f"{folder}: {len(directories)} directories for {len(known)} classes; fetch it again"
        )
    path = place / "caltech101.json"
    write_text(path, json.dumps(dict(zip(directories, known)), indent=1) + "\n")
    return path


# --- The photos. ---

#: What a mirror image exchanges: sides of the picture, of a body, of a thing ("right behind" is
#: none, nor is "left behind").
_SIDE = re.compile(
    r"(?:\b(?:to|on|at|from|towards?) (?:(?:the|his|her|its|their) )?"
    r"(?:(?:far|upper|lower|top|bottom) )?|\blook(?:s|ing) )(left|right)\b"
    r"|\b(left|right)(?= (?:arm|ear|eye|foot|hand|knee|leg|shoulder|side|wrist)s?\b)",
    re.IGNORECASE,
)
_WORDS = re.compile(r"\b(left|right)", re.IGNORECASE)
_OTHER = {"left": "right", "right": "left", "Left": "Right", "Right": "Left"}
#: A caption of a photo is seen once while the photo is seen as often as it has captions.
_TIMES = 5


def other_side(caption: str) -> str | None:
    """The caption of the mirror image; None where left and right are not told, or mean no side."""
    words = _WORDS.findall(caption)
    if not words or len(words) != len(_SIDE.findall(caption)) or not _OTHER.keys() >= {*words}:
        return None
    return _WORDS.sub(lambda match: _OTHER[match[0]], caption)


def write_photos(folder: Path, data: Path, dev: int, draw: int = 0) -> None:
    """Write both cuts as one data set (see the module), unless it is there already.

    `folder` appears when all is written, or not at all. Raises CompoclipError for absent or
    malformed files, when `folder` holds another data set, and when no train photo would be left.
    """
    official: dict[str, list[tuple[Path, Captioned]]] = {"train": [], "test": []}
    digest = hashlib.blake2b(digest_size=16)
    for cut in _CUTS:
        place = data / "photos" / cut
        for split, photos in official.items():
            read, _ = read_flickr8k(place / TOKENS, place / _list_of(split), _REMEDY)
            photos += [(place / "images" / photo.image, photo) for photo in read]
            digest.update(repr(read).encode())
    everything = [row for photos in official.values() for row in photos]
    official_names = {
        split: [photo.image for _, photo in photos] for split, photos in official.items()
    }
    split_of = _splits(official_names, dev, draw)
    made_from: dict[str, Any] = {
        "captions": digest.hexdigest(),
        "dev": dev,
        "side": SIDE,
        "quality": QUALITY,
        "tables": [*Photos.tables, *SPLITS[1:]],
    }
    if draw:
        made_from["draw"] = draw
    if (folder / _ABOUT).is_file():
        if read_json(folder / _ABOUT) != made_from:
            raise CompoclipError(f"{folder}: made of other data; delete it or choose another")
        return
    with new_folder(folder) as new:
        (new / "images").mkdir()
        lists: dict[str, list[str]] = {split: [] for split in SPLITS}
        tokens, sides = [], []
        tables: dict[str, list[str]] = {split: [] for split in SPLITS}
        captions_of: dict[str, dict[str, Sequence[str]]] = {split: {} for split in SPLITS}
        for path, photo in track(iter(everything), "reducing photos", len(everything), "photos"):
            name = f"{Path(photo.image).stem}.webp"
            (new / "images" / name).write_bytes(_reduced(path))
            split = split_of[photo.image]
            lists[split].append(name)
            captions_of[split][name] = photo.captions
            tokens += [f"{name}#{k}\t{text}\n" for k, text in enumerate(photo.captions)]
            row = {"image": f"images/{name}", "caption": photo.captions}
            tables[split].append(json.dumps(row) + "\n")
            if split == "train":
                for text in photo.captions:
                    if other := other_side(text):
                        told = {**row, "caption": [text], "neg_caption": other, "mirror": True}
                        sides.append((json.dumps(told) + "\n") * _TIMES)
        (new / TOKENS).write_text("".join(tokens), encoding="utf-8")
        written = {TABLE if split == "train" else split: rows for split, rows in tables.items()}
        written[SIDES] = tables["train"] + sides
        twins = {
            split: write_twins(new, split, captions) for split, captions in captions_of.items()
        }
        written[TWINS] = tables["train"] + twins["train"]
        for table, rows in written.items():
            (new / f"{table}.jsonl").write_text("".join(rows), encoding="utf-8")
        for split, names in lists.items():
            (new / _list_of(split)).write_text("".join(f"{name}\n" for name in names))
        (new / _ABOUT).write_text(json.dumps(made_from, indent=1))
    note(f"{', '.join(f'{len(n)} {split}' for split, n in lists.items())} photos -> {folder}")


def _list_of(split: str) -> str:
    return f"Flickr_8k.{split}Images.txt"


def _splits(official: Mapping[str, Sequence[str]], dev: int, draw: int) -> dict[str, str]:
    """Return the split of every photo, see the module. official: train and test photos."""
    test = list(official["test"])
    others = sorted(official["train"], key=_hash)
    if draw:
        everything = sorted([*others, *test], key=lambda name: _hash(f"{draw} {name}"))
        test, others = everything[: len(test)], everything[len(test) :]
    if not 1 <= dev < len(others):
        raise CompoclipError(
            f"dev: {dev} of {len(others)} train photos cannot be held out; choose fewer"
        )
    split_of = dict.fromkeys(others, "train")
    return split_of | dict.fromkeys(others[:dev], "dev") | dict.fromkeys(test, "test")


def _hash(name: str) -> bytes:
    return hashlib.blake2b(Path(name).stem.encode(), digest_size=16).digest()


def _reduced(path: Path) -> bytes:
    """A photo in the terms of all: its bytes as they are where they already meet them."""
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            if (image.format, *image.size) == ("WEBP", SIDE, SIDE):
                return data
            small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    except (OSError, ValueError) as error:
        raise CompoclipError(f"{path}: no photo that can be read ({error}); {_REMEDY}") from error
    stream = io.BytesIO()
    small.save(stream, "WEBP", quality=QUALITY)
    return stream.getvalue()


def main() -> int:
    """Write the photos of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder that holds photos/")
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--dev", type=int, default=Photos.dev, help="train photos to hold out")
    parser.add_argument("--draw", type=int, default=0, help="of the split; 0 is the official one")
    options = parser.parse_args()
    write_photos(options.folder, options.data, options.dev, options.draw)
    return 0


if __name__ == "__main__":
    end_with(main, "lab.photos")
