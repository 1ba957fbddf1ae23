"""How plots look: one style for light and one for dark pages, colours that colour-blind people can
tell apart, markers besides colours, and the way from matplotlib to a data URI."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compoclip.files import write_atomically

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (3, 3)))
# Okabe and Ito's colours, darker on white and lighter on black; the base is grey.
_LIGHT = ("#5f6670", "#0072b2", "#c44e00", "#00805c", "#a8518a", "#8a6d00", "#2b86b8", "#7a3b00")
_DARK = ("#a7b0bc", "#56b4e9", "#ff9a57", "#35c79b", "#e39bc9", "#e6c229", "#9fd4f2", "#d9a37a")
_NOTHING = {"Date": None, "Creator": None, "Format": None, "Type": None}  # equal bytes every time


@dataclass(frozen=True)
class Theme:
    """Colours of a plot. models: by position, the base first."""

    name: str
    ink: str
    soft: str
    grid: str
    better: str
    worse: str
    models: tuple[str, ...]

    def model(self, position: int) -> str:
        """Colour of the model at this position."""
        return self.models[position % len(self.models)]


LIGHT = Theme("light", "#1c2430", "#5f6670", "#dfe3e8", "#0072b2", "#c44e00", _LIGHT)
DARK = Theme("dark", "#e8ebf0", "#a7b0bc", "#3a424d", "#56b4e9", "#ff9a57", _DARK)


@dataclass(frozen=True)
class Plot:
    """A plot as two data URIs, light and dark, with its size in CSS pixels and what it shows in
    words (`alt`). title: shown above it."""

    title: str
    alt: str
    light: str
    dark: str
    width: int
    height: int


def plot(title: str, alt: str, size: tuple[int, int], draw: Callable[[Axes, Theme], None]) -> Plot:
    """Draw once per theme; `size` in CSS pixels."""
    return Plot(title, alt, _uri(size, draw, LIGHT), _uri(size, draw, DARK), *size)


@dataclass(frozen=True)
class Panel:
    """One of several axes of a figure."""

    title: str
    draw: Callable[[Axes, Theme], None]


def write_figure(stem: Path, panels: Sequence[Panel], size: tuple[int, int]) -> tuple[Path, Path]:
    """Panels in rows of three, on white, as STEM.png and STEM.svg; `size` of each in CSS pixels.

    Returns both paths. Raises CompoclipError when they cannot be written.
    """
    with rc_context(_style(LIGHT)):
        columns = min(3, len(panels))
        rows = -(-len(panels) // columns)
        inches = size[0] * columns / 72, size[1] * rows / 72
        figure = Figure(figsize=inches, layout="constrained", facecolor="white")
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for empty in places[len(panels) :]:
            empty.set_axis_off()
        for axes, panel in zip(places, panels):
            axes.set_title(panel.title, fontsize=12, loc="left", color=LIGHT.ink)
            panel.draw(axes, LIGHT)
        paths = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
        write_atomically(paths[0], lambda place: figure.savefig(place, format="png", dpi=144))
        write_atomically(
            paths[1], lambda place: figure.savefig(place, format="svg", metadata=_NOTHING)
        )
    return paths


def _style(theme: Theme) -> dict[Any, object]:
    return {
        "text.parse_math": False,  # a "$" in a name is a "$"
        "svg.fonttype": "none",  # text stays text: small files, and the reader's own font
        "svg.hashsalt": "compoclip",  # ids, and so bytes, are the same every time
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Segoe UI", "Helvetica", "Arial"],
        "font.size": 11,
        "axes.edgecolor": theme.soft,
        "axes.labelcolor": theme.ink,
        "axes.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.formatter.useoffset": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": theme.grid,
        "grid.linewidth": 0.7,
        "text.color": theme.ink,
        "xtick.color": theme.soft,
        "ytick.color": theme.soft,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "legend.frameon": False,
    }


def _uri(size: tuple[int, int], draw: Callable[[Axes, Theme], None], theme: Theme) -> str:
    with rc_context(_style(theme)):
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), layout="constrained")
        figure.patch.set_alpha(0.0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0.0)
        draw(axes, theme)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata=_NOTHING)
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


Box = tuple[float, float, float, float]


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    frame: tuple[float, float],
    taken: Sequence[Box] = (),
) -> list[tuple[float, float]]:
    """Lower left corners of labels beside their points, so that they overlap as little as can be.

    points, sizes, frame, taken: in pixels, the frame from (0, 0); taken: boxes (left, bottom,
    right, top) to keep free. Greedy: each label takes the best of places around its point.
    """
    boxes = list(taken)
    boxes += [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    corners = []
    for (x, y), (w, h) in zip(points, sizes):
        gaps = [(dx, dy) for far in (8, 16, 28, 42, 60) for dx, dy in _around(w, h, far)]
        places = [(x + dx, y + dy) for dx, dy in gaps]
        costs = [
            _cost((a, b, a + w, b + h), frame, boxes) + order * 0.01
            for order, (a, b) in enumerate(places)
        ]
        a, b = places[costs.index(min(costs))]
        boxes.append((a, b, a + w, b + h))
        corners.append((a, b))
    return corners


def _around(w: float, h: float, far: float) -> list[tuple[float, float]]:
    return [
        (far, far / 2),
        (far, -h - far / 2),
        (-w - far, far / 2),
        (-w - far, -h - far / 2),
        (far, -h / 2),
        (-w - far, -h / 2),
        (-w / 2, far),
        (-w / 2, -h - far),
    ]


def _cost(box: Box, frame: tuple[float, float], others: Sequence[Box]) -> float:
    """Overlap with other boxes, and ten times what sticks out of the frame, in square pixels."""
    left, bottom, right, top = box
    overlap = sum(
        max(0.0, min(right, r) - max(left, a)) * max(0.0, min(top, t) - max(bottom, b))
        for a, b, r, t in others
    )
    out = max(0.0, -left) + max(0.0, -bottom)
    out += max(0.0, right - frame[0]) + max(0.0, top - frame[1])
    return overlap + 100.0 * out
