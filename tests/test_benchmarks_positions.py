"""Flickr30k-Positions and positions of own boxes: mirrored photos, pairs, what the world says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmark_files import refuses
from compoclip.archives import Members
from compoclip.benchmarks.case import Case, Form, ImageRef, TiePolicy, image_key
from compoclip.benchmarks.registry import load_benchmark, meta
from compoclip.evaluation.encode import image_content_key
from compoclip.evaluation.encoder import ImageReader
from compoclip.models.preprocess import Preprocess
from compoclip.report.looks import Album
from evaluation_helpers import features_from, score_items

OWN = "a dog is to the left of a man"
OTHER = "a dog is to the right of a man"


def write_official(root: Path, name: str, rows: list[tuple[str, ...]], columns: Any = None) -> Path:
    path = root / "flickr30k_positions" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    head = columns or ("", "captions", "images", "neg_captions", "neg_images")
    lines = ["\t".join(map(str, line)) for line in [head, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_flickr30k_positions(tmp_path: Path) -> None:
    row = ("0", OWN, "flickr30k-images/7.jpg", OTHER, "flipped/7.jpg")
    write_official(tmp_path, "test_left_right_.csv", [row])
    refuses(r"up_down_.csv: no such file; .*left_right\*", "", "flickr30k_positions", tmp_path)
    up = ("0", "a cup above a hat", "x/8.jpg", "a cup below a hat", "y/8_made.png")
    write_official(tmp_path, "test_up_down_.csv", [up])
    found = load_benchmark("flickr30k_positions", tmp_path)
    photo = ImageRef(tmp_path / "flickr30k" / "images" / "7.jpg")
    mirrored = replace(photo, mirror=True)
    assert found.content[:3] == (
        Case("left_right/1/own", Form.CHOOSE_TEXT, (photo,), (OWN, OTHER), "left_right"),
        Case("left_right/1/other", Form.CHOOSE_TEXT, (mirrored,), (OTHER, OWN), "left_right"),
        Case("left_right/1", Form.GROUP, (photo, mirrored), (OWN, OTHER), "left_right_pairs"),
    )
    made = tmp_path / "flickr30k_positions" / "up_down" / "8_made.png"
    assert found.content[4].images == (ImageRef(made),)
    assert (found.headline, found.ties) == ("accuracy", {"": TiePolicy.STRICT})
    assert found.aggregates["accuracy"].subtasks() == {"left_right", "up_down"}
    assert found.aggregates["micro"].subtasks() == {"left_right", "up_down"}
    assert found.aggregates["group"].subtasks() == {"left_right_pairs", "up_down_pairs"}
    part = load_benchmark("flickr30k_positions:left_right_pairs", tmp_path)
    assert [case.form for case in part.content] == [Form.GROUP]
    assert set(meta("flickr30k_positions").skills) == {"left_right", "up_down"}


def test_the_official_accuracy_by_hand(tmp_path: Path) -> None:
    """The mean over both pictures of "its own caption beats the other"; and Winoground's scores."""
    row = ("0", OWN, "7.jpg", OTHER, "7.jpg")
    write_official(tmp_path, "test_left_right_.csv", [row])
    found = load_benchmark("flickr30k_positions:left_right*", tmp_path)
    refs = list(dict.fromkeys(found.content.images))

    def got(table: list[list[float]]) -> dict[str, float]:
        scores = {str(k): dict(zip((OWN, OTHER), line)) for k, line in enumerate(table)}
        features = features_from(scores)
        features = replace(features, image_rows={ref: k for k, ref in enumerate(refs)})
        items = score_items(found.content, features, ties=found.ties)
        return {name: float(np.nanmean(each.used)) for name, each in items.outcomes.items()}

    # One caption wins for both pictures, as with an encoder that does not see places.
    assert got([[0.5, 0.4], [0.5, 0.4]]) == {"accuracy": 0.5, "group": 0, "text": 0, "image": 0}
    assert got([[0.5, 0.4], [0.3, 0.6]]) == {"accuracy": 1, "group": 1, "text": 1, "image": 1}
    assert got([[0.5, 0.5], [0.3, 0.6]]) == {"accuracy": 0.5, "group": 0, "text": 0, "image": 1}


# --- Mirrored photos. ---


def test_a_mirrored_photo_is_the_photo_mirrored(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, size=(20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels[:, ::-1]).save(tmp_path / "b.png")
    ref = ImageRef(tmp_path / "a.png")
    read = ImageReader(Preprocess(size=(16, 16)))
    mirrored, by_hand = read(replace(ref, mirror=True)), read(ImageRef(tmp_path / "b.png"))
    assert np.array_equal(mirrored, by_hand)
    assert not np.array_equal(mirrored, read(ref))
    # boxes are those of the photo as it is stored
    box = (1.0, 2.0, 11.0, 12.0)
    cut = read(ImageRef(tmp_path / "a.png", box, mirror=True))
    assert np.array_equal(cut, read(ImageRef(tmp_path / "b.png", (19.0, 2.0, 29.0, 12.0))))
    members = Members()
    keys = {image_content_key(each, members) for each in (ref, replace(ref, mirror=True))}
    assert len(keys) == 2
    key = image_key(replace(ref, box=box, mirror=True))
    assert key == f"{tmp_path / 'a.png'}#1,2,11,12#mirrored"
    shown = Album().photo(key)
    assert shown is not None
    assert np.array_equal(np.asarray(shown), pixels[2:12, 1:11][:, ::-1])
    assert Album().photo(f"{tmp_path / 'none.png'}#mirrored") is None
