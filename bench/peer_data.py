"""The inputs that `python -m bench peers` gives to all tools: a model, photos, captions, labels."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tarfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import open_clip
import torch
from safetensors.torch import save_file

from bench.made import photo_files, world_captions
from bench.peer_programs import ARCHITECTURE
from compoclip.errors import UsageError
from compoclip.files import read_json_object
from compoclip.models import load_model, save_model

PARTS = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
_TEMPLATE = "a photo of a {c}."
# Places in a folder of real data.
_COCO, _ITEMS = Path("photos/sugarcrepe_coco/images"), Path("annotations/sugarcrepe")
_FLICKR, _CLASSES = Path("photos/flickr8k"), Path("classification")


def backwards(text: str) -> str:
    """Return the words of a text from the last to the first, as a negative of equal length."""
    return " ".join(reversed(text.split()))


def make_data(folder: Path, count: int) -> Path:
    """Write photo-like images, captions of the world and classes, laid out as the real data are."""
    texts = world_captions(4 * (5 * count // 4 + 1))
    names = [path.name for path in photo_files(folder / _COCO, count)]
    (folder / _ITEMS).mkdir(parents=True)
    for first, part in enumerate(PARTS):
        items = {
            str(key): {
                "filename": names[key],
                "caption": texts[key],
                "negative_caption": backwards(texts[key]),
            }
            for key in range(first, count, len(PARTS))
        }
        (folder / _ITEMS / f"{part}.json").write_text(json.dumps(items), encoding="utf-8")
    shutil.copytree(folder / _COCO, folder / _FLICKR / "images")
    lines = [f"{names[k // 5]}#{k % 5}\t{texts[k]}" for k in range(5 * count)]
    (folder / _FLICKR / "Flickr8k.token.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / _FLICKR / "Flickr_8k.testImages.txt").write_text("\n".join(names), encoding="utf-8")
    for name, classes in (("eurosat", 10), ("caltech101", 101)):
        for number in range(classes):
            photo_files(folder / _CLASSES / name / f"thing_{number}", 2, size=64)
    return folder


class PeerData:
    """Inputs below a folder, each written when a command first needs it."""

    def __init__(self, folder: Path, real: Path | None, photos: int, pairs: int) -> None:
        self._folder, self._photos, self.count = folder, photos, pairs
        if real is not None and not (real / _FLICKR).is_dir():
            raise UsageError(f"{real / _FLICKR}: no such folder; leave --real out for made data")
        self._real = real or make_data(folder / "made", max(photos, pairs))

    @cached_property
    def weights(self) -> Path:
        """Write random weights of a ViT-B/32 in open_clip's names."""
        path = self._folder / "weights.safetensors"
        torch.manual_seed(0)
        save_file(open_clip.create_model(ARCHITECTURE).state_dict(), path)
        return path

    @cached_property
    def model(self) -> str:
        """Return what compoclip calls the model with these weights."""
        return f"{ARCHITECTURE}@{self.weights}"

    @cached_property
    def hf_model(self) -> Path:
        """Write the model in the form of transformers and sentence-transformers."""
        folder = self._folder / "hf"
        save_model(load_model(self.model), folder, form="hf")
        return folder

    @cached_property
    def items(self) -> Path:
        """Write photos, and SugarCrepe's items on them: at least one of each part, since readers
        refuse a part without items."""
        folder = self._folder / "items"
        paths = sorted((self._real / _COCO).iterdir())
        names = {path.name for path in paths[: self._photos]}
        parts = {part: read_json_object(self._real / _ITEMS / f"{part}.json") for part in PARTS}
        for items in parts.values():
            shown = {item["filename"] for item in items.values()}
            if names.isdisjoint(shown):
                names.add(next(path.name for path in paths if path.name in shown))
        _copied([path for path in paths if path.name in names], folder / "val2017")
        for part, items in parts.items():
            some = {key: item for key, item in items.items() if item["filename"] in names}
            (folder / f"{part}.json").write_text(json.dumps(some), encoding="utf-8")
        return folder

    @cached_property
    def _captioned(self) -> dict[Path, list[str]]:
        """Photos with their captions: those of Flickr8k's test."""
        source = self._real / _FLICKR
        names = (source / "Flickr_8k.testImages.txt").read_text("utf-8").split()
        captions: dict[Path, list[str]] = {source / "images" / name: [] for name in names}
        for line in (source / "Flickr8k.token.txt").read_text("utf-8").splitlines():
            place, text = line.split("\t")
            captions.get(source / "images" / place.partition("#")[0], []).append(text.strip())
        return captions

    @cached_property
    def photos(self) -> Path:
        """Write a folder of photos."""
        return _copied(list(self._captioned)[: self._photos], self._folder / "photos")

    @cached_property
    def captions(self) -> Path:
        """Write a table of all captions of these photos, without commas and quotes.

        CLIP_benchmark reads cells as they are.
        """
        lines = ["image,caption"]
        for path in list(self._captioned)[: self._photos]:
            texts = (text.replace(",", "").replace('"', "") for text in self._captioned[path])
            lines += [f"{path.name},{text.strip()}" for text in texts]
        return self._lines("captions.csv", lines)

    @cached_property
    def queries(self) -> Path:
        """Write one caption of each of these photos, one per line."""
        texts = [texts[0] for texts in self._captioned.values()]
        return self._lines("queries.txt", texts[: self._photos])

    @cached_property
    def sentences(self) -> Path:
        """Write all captions, one per line."""
        texts = [text for texts in self._captioned.values() for text in texts]
        return self._lines("sentences.txt", texts)

    def _lines(self, name: str, lines: Iterable[str]) -> Path:
        path = self._folder / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    @cached_property
    def vectors(self) -> Path:
        """Write random vectors of unit length to search among."""
        return self._vectors("vectors.npy", 100_000)

    @cached_property
    def queried(self) -> Path:
        """Write random vectors to search for."""
        return self._vectors("queried.npy", 1_000)

    def _vectors(self, name: str, count: int) -> Path:
        rows = np.random.default_rng(count).standard_normal((count, 512), np.float32)
        np.save(self._folder / name, rows / np.linalg.norm(rows, axis=1, keepdims=True))
        return self._folder / name

    @cached_property
    def pairs(self) -> Path:
        """Write a table of photos with a caption each."""
        return self._table("pairs.csv", ["image", "caption"])

    @cached_property
    def negatives(self) -> Path:
        """Write the same table with a negative per caption."""
        return self._table("negatives.csv", ["image", "caption", "neg_caption"])

    def _table(self, name: str, columns: list[str]) -> Path:
        rows = [(path.resolve(), texts[0]) for path, texts in self._captioned.items()]
        with (self._folder / name).open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(columns)
            for path, text in rows[: self.count]:
                table.writerow((path, text, backwards(text))[: len(columns)])
        return self._folder / name

    @cached_property
    def eurosat(self) -> Path:
        """Write EuroSAT in CLIP_benchmark's layout."""
        return self._shard("eurosat")

    @cached_property
    def caltech101(self) -> Path:
        """Write Caltech-101 in CLIP_benchmark's layout."""
        return self._shard("caltech101")

    def _shard(self, name: str) -> Path:
        folder, source = self._folder / name, self._real / _CLASSES / name
        classes = sorted(path for path in source.iterdir() if path.is_dir())
        (folder / "test").mkdir(parents=True)
        most = max(1, self._photos // len(classes))
        with tarfile.open(folder / "test" / "0.tar", "w") as shard:
            for label, photos in enumerate(classes):
                for path in sorted(photos.iterdir())[:most]:
                    _add(shard, f"{label}-{path.stem}.jpg", path.read_bytes())
                    _add(shard, f"{label}-{path.stem}.cls", str(label).encode())
        names = [photos.name.replace("_", " ") for photos in classes]
        texts = {
            "classnames.txt": "\n".join(names),
            "zeroshot_classification_templates.txt": _TEMPLATE,
            "test/nshards.txt": "1",
        }
        for file, text in texts.items():
            (folder / file).write_text(text + "\n", encoding="utf-8")
        return folder


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    shard.addfile(entry, io.BytesIO(content))


def _copied(paths: Iterable[Path], folder: Path) -> Path:
    folder.mkdir(parents=True)
    for path in paths:
        shutil.copy(path, folder)
    return folder
