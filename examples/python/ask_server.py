"""A client of `compoclip serve`: finds the best image for a text, and scores rewrites of it.

compoclip serve bundled                       # in another terminal
python examples/python/ask_server.py
"""

from __future__ import annotations

import base64
import io
import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from PIL import Image, ImageDraw

ADDRESS = "http://127.0.0.1:8000"


def ask(address: str, path: str, request: dict[str, Any], tries: int = 5) -> dict[str, Any]:
    """POST JSON; come back when the server has no room, as its Retry-After says."""
    body = json.dumps(request).encode()
    kind = {"Content-Type": "application/json"}
    for left in reversed(range(tries)):
        try:
            with urllib.request.urlopen(
                urllib.request.Request(address + path, body, kind)
            ) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code != 503 or not left:
                raise SystemExit(json.load(error)["error"]["message"]) from None
            time.sleep(float(error.headers.get("Retry-After", "1")))
    raise AssertionError


def data_url(image: Image.Image) -> str:
    """An image as requests carry it."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def picture(colour: str) -> Image.Image:
    """A disc of that colour on white."""
    image = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(image).ellipse((12, 12, 52, 52), fill=colour)
    return image


def main(address: str = ADDRESS) -> tuple[str, list[list[float]]]:
    """The colour whose picture fits a text best by embeddings, and scores of pictures and texts."""
    colours = ["red", "blue", "green"]
    pictures = [data_url(picture(colour)) for colour in colours]
    text = "a blue circle on a white ground"
    answer = ask(address, "/v1/embeddings", {"input": [text, *pictures]})
    query, *rows = [each["embedding"] for each in answer["data"]]  # of unit length
    cosines = [sum(a * b for a, b in zip(query, row)) for row in rows]
    best = colours[cosines.index(max(cosines))]

    texts = [text, "a white circle on a blue ground"]
    scores = ask(address, "/v1/scores", {"images": pictures, "texts": texts})["scores"]
    return best, scores


if __name__ == "__main__":
    best, scores = main(*sys.argv[1:2])
    print(f"best: {best}")
    for row in scores:
        print("  ".join(f"{score:+.3f}" for score in row))
