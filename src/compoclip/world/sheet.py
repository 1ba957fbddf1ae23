"""A contact sheet: pictures of scenes with their captions below, for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from compoclip.world.render import render
from compoclip.world.scene import Scene

_SIDE = 208
_MARGIN = 12
_LINE = 15
_FONT = 12


def contact_sheet(
    scenes: Sequence[tuple[Scene, Sequence[str]]], size: int, columns: int = 4
) -> Image.Image:
    """All (scene, captions) in rows of `columns`; scenes are drawn with `size` pixels, then grown.

    Small pictures grow by a whole factor without smoothing, so that the sheet shows exactly what a
    model sees. Raises UsageError when `size` is below 16.
    """
    shown = size * max(1, _SIDE // size)
    font = ImageFont.load_default(_FONT)
    cells = [
        (scene, [line for text in captions for line in _wrap(text, font, shown)])
        for scene, captions in scenes
    ]
    columns = max(1, min(columns, len(cells)))
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    heights = [shown + _MARGIN // 2 + _LINE * max(len(lines) for _, lines in row) for row in rows]
    width = columns * (shown + _MARGIN) + _MARGIN
    sheet = Image.new("RGB", (width, sum(heights) + (len(rows) + 1) * _MARGIN), "white")
    pen = ImageDraw.Draw(sheet)
    top = _MARGIN
    for row, height in zip(rows, heights):
        for i, (scene, lines) in enumerate(row):
            left = _MARGIN + i * (shown + _MARGIN)
            picture = Image.fromarray(render(scene, size))
            sheet.paste(picture.resize((shown, shown), Image.Resampling.NEAREST), (left, top))
            for k, line in enumerate(lines):
                spot = (left, top + shown + _MARGIN // 2 + k * _LINE)
                pen.text(spot, line, fill="black", font=font)
        top += height + _MARGIN
    return sheet


def _wrap(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> list[str]:
    """The text in lines no wider than `width`, each further line indented."""
    lines: list[str] = []
    current = "- "
    for word in text.split():
        longer = f"{current}{word} "
        if math.ceil(font.getlength(longer)) > width and current.strip(" -"):
            lines.append(current.rstrip())
            longer = f"   {word} "
        current = longer
    return [*lines, current.rstrip()]
