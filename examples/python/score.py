"""Which caption fits which picture, and does the model notice a wrong word?

python examples/python/score.py
"""

from __future__ import annotations

from PIL import Image, ImageDraw

import compoclip


def picture(colour: str) -> Image.Image:
    """A disc of that colour on white."""
    image = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(image).ellipse((12, 12, 52, 52), fill=colour)
    return image


def main() -> dict[str, float]:
    """How far the right caption is ahead of each hard negative of it."""
    model = compoclip.load("bundled")
    pictures = [picture("red"), picture("blue")]
    captions = ["a red circle", "a blue circle"]
    scores = model.score(pictures, captions)  # (pictures, captions) cosines
    for colour, row in zip(("red", "blue"), scores.round(3).tolist()):
        print(colour, dict(zip(captions, row)))

    negatives = [
        record["text"]
        for record in compoclip.rewrite("a red circle on a white ground")
        if record["text"] and not record["keeps_meaning"]
    ]
    right, *wrong = model.score(pictures[:1], ["a red circle on a white ground", *negatives])[0]
    return {text: float(right - score) for text, score in zip(negatives, wrong)}


if __name__ == "__main__":
    for text, lead in main().items():
        print(f"{lead:+.3f}  {text}")
