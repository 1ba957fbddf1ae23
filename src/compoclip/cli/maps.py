"""`compoclip maps MODEL ...`: where the words of a caption look in an image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from compoclip import console
from compoclip.cli.options import Models, OnDevice, Outcome
from compoclip.files import require_writable, write_atomically
from compoclip.run import load_models


@dataclass(frozen=True)
class MapsOptions(OnDevice):
    """Draw token-patch maps: which patches of an image each word of a caption aligns with.

    Writes one picture per word and model to OUT.

    Examples:
        compoclip maps bundled --image cup.jpg --caption "a red cup" --out maps

    Args:
        models: As for evaluate; NAME=MODEL gives a name.
        image: Image file to map.
        caption: Its caption.
        out: Folder for the pictures.
    """

    models: Models
    image: Path
    caption: str
    out: Path


def main(options: MapsOptions) -> Outcome:
    """Write OUT/MODEL/01-word.png, a picture per word and model."""
    require_writable(options.out)
    models = load_models(options.models, options.device)
    from compoclip.analysis.maps import overlay, patch_maps
    from compoclip.data.decode import decode

    image = decode(options.image, upright=True)
    records, rows = [], []
    for name, model in models.items():
        maps = patch_maps(model, image, options.caption)
        for place, word in enumerate(maps.words, 1):
            plain = "".join(c for c in word.word if c.isalnum()) or "mark"
            path = options.out / name / f"{place:02}-{plain}.png"
            made = overlay(image, word.attention, maps.region)
            write_atomically(path, partial(made.save, format="PNG"))
            records.append(
                {"model": name, "word": word.word, "cosine": word.cosine, "picture": str(path)}
            )
            rows.append([name, word.word, f"{word.cosine:.3f}", str(path)])
        for lost in maps.left_out:
            console.note(f"{name}: '{lost}' lies beyond the context and has no map")
    text = console.table(rows, ["model", "word", "cosine", "picture"], left=2)
    return records, text
