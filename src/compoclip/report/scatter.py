"""One score against another: models with their intervals, a front, grey points for reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from matplotlib.axes import Axes

from compoclip.report.plotting import MARKERS, Box, Plot, Theme, place_labels, plot
from compoclip.report.wording import listed, percent, short

WIDTH, HEIGHT = 340, 310
_LETTER = 7.0  # mean width of a letter at the label size, in pixels
_SMALL = 5.6  # and at that of the grey labels


class Ranged(Protocol):
    """A value with its 95 % interval, None for none, in [0, 1]."""

    @property
    def value(self) -> float:
        """The value."""

    @property
    def low(self) -> float | None:
        """Lower end."""

    @property
    def high(self) -> float | None:
        """Upper end."""


def ends(each: Ranged) -> tuple[float, float]:
    """The ends of its interval; the value itself where there is none."""
    if each.low is None or each.high is None:
        return each.value, each.value
    return each.low, each.high


def error_bar(each: Ranged) -> list[list[float]]:
    """How far the interval reaches below and above the value, in points, as matplotlib wants it:
    not negative, though a bootstrap's interval need not hold the value."""
    low, high = ends(each)
    return [[100 * max(0.0, each.value - low)], [100 * max(0.0, high - each.value)]]


@dataclass(frozen=True)
class Dot:
    """A model: its place among the models, both scores, and a line below its name."""

    name: str
    place: int
    x: Ranged
    y: Ranged
    note: str = ""


@dataclass(frozen=True)
class Reference:
    """A published point, in [0, 1]."""

    name: str
    x: float
    y: float


def on_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other one beats: more on one axis and not less on the other.

    From left to right; of equal points all.
    """
    free = [
        k
        for k, (x, y) in enumerate(points)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    ]
    return sorted(free, key=lambda k: (points[k][0], -points[k][1]))


def front_of(dots: Sequence[Dot]) -> list[str]:
    """Names of the models that no other one beats on both scores."""
    return [dots[k].name for k in on_front([(d.x.value, d.y.value) for d in dots])]


def scatter(
    dots: Sequence[Dot],
    labels: tuple[str, str],
    *,
    title: str,
    about: str,
    diagonal: bool = False,
    front: bool = False,
    references: Sequence[Reference] = (),
) -> Plot:
    """labels: of the axes. diagonal: draw where both are equal. front: draw the Pareto front of
    all points. Of the references those on the front and the first one are named."""
    size = (WIDTH, HEIGHT)
    points = [(d.x.value, d.y.value) for d in dots] + [(r.x, r.y) for r in references]
    best = on_front(points) if front else []
    limits = [
        _limits([v for d in dots for v in ends(d.x)] + [r.x for r in references]),
        _limits([v for d in dots for v in ends(d.y)] + [r.y for r in references]),
    ]
    frame = (size[0] - 66.0, size[1] - 54.0)
    scale = [frame[k] / (limits[k][1] - limits[k][0]) for k in (0, 1)]

    def pixel(x: float, y: float) -> tuple[float, float]:
        return (100 * x - limits[0][0]) * scale[0], (100 * y - limits[1][0]) * scale[1]

    texts = [short(d.name) + (f"\n{d.note}" if d.note else "") for d in dots]
    told = {k - len(dots) for k in best if k >= len(dots)} | ({0} if references else set())
    small = [(k, short(references[k].name, 20)) for k in sorted(told)]
    corners = place_labels(
        [pixel(d.x.value, d.y.value) for d in dots]
        + [pixel(references[k].x, references[k].y) for k, _ in small],
        [_extent(text) for text in texts] + [(_SMALL * len(text), 12) for _, text in small],
        frame,
        _taken(dots, references, pixel, diagonal),
    )

    def draw(axes: Axes, theme: Theme) -> None:
        if references:
            across, up = (
                [100 * v for v in axis] for axis in zip(*((r.x, r.y) for r in references))
            )
            axes.scatter(across, up, s=16, color=theme.soft, alpha=0.55, linewidths=0, zorder=2)
        if len(best) > 1:
            axes.plot(
                *zip(*((100 * x, 100 * y) for x, y in (points[k] for k in best))),
                drawstyle="steps-pre",
                color=theme.soft,
                linewidth=1.1,
                linestyle=(0, (1, 2)),
                zorder=1,
            )
        if diagonal:
            axes.plot([0, 100], [0, 100], color=theme.soft, linewidth=1, linestyle=(0, (4, 3)))
        for dot in dots:
            _bar(axes, theme, dot)
        axes.set_xlim(*limits[0])
        axes.set_ylim(*limits[1])
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        named = [(text, theme.model(d.place), 11) for text, d in zip(texts, dots)]
        named += [(text, theme.soft, 9) for _, text in small]
        for (text, colour, points_high), corner in zip(named, corners):
            axes.text(
                corner[0] / scale[0] + limits[0][0],
                corner[1] / scale[1] + limits[1][0],
                text,
                color=colour,
                fontsize=points_high,
                linespacing=1.15,
                va="bottom",
                zorder=4,
            )

    return plot(title, _alt(dots, references, best, about), size, draw)


def _bar(axes: Axes, theme: Theme, dot: Dot) -> None:
    """A model's marker with both intervals."""
    x, y = dot.x, dot.y
    axes.errorbar(
        100 * x.value,
        100 * y.value,
        xerr=error_bar(x),
        yerr=error_bar(y),
        fmt=MARKERS[dot.place % len(MARKERS)],
        color=theme.model(dot.place),
        markersize=8,
        elinewidth=1.1,
        capsize=0,
        zorder=3,
    )


def _taken(
    dots: Sequence[Dot],
    references: Sequence[Reference],
    pixel: Callable[[float, float], tuple[float, float]],
    diagonal: bool,
) -> list[Box]:
    """What labels should not cover: intervals, grey points, the diagonal."""
    boxes: list[Box] = []
    for dot in dots:
        (a, b), (c, d) = (pixel(x, y) for x, y in zip(ends(dot.x), ends(dot.y)))
        cx, cy = pixel(dot.x.value, dot.y.value)
        boxes += [(a, cy - 2, c, cy + 2), (cx - 2, b, cx + 2, d)]
    places = [pixel(r.x, r.y) for r in references]
    if diagonal:
        places += [pixel(v / 100, v / 100) for v in range(101)]
    return boxes + [(x - 2, y - 2, x + 2, y + 2) for x, y in places]


def _alt(
    dots: Sequence[Dot], references: Sequence[Reference], best: Sequence[int], about: str
) -> str:
    told = [
        f"{d.name}: {percent(d.x.value)} across, {percent(d.y.value)} up"
        + (f", {d.note}" if d.note else "")
        for d in dots
    ]
    told += [f"{r.name} as published: {percent(r.x)}, {percent(r.y)}" for r in references]
    names = [*(d.name for d in dots), *(f"{r.name} as published" for r in references)]
    front = f" On the front: {listed([names[k] for k in best])}." if best else ""
    interval = ", with 95 % intervals" if dots else ""
    return f"{about}{interval}. {'; '.join(told)}.{front}"


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Axis limits in percent around values, with room for labels and never a span below 8."""
    low, high = 100 * min(values), 100 * max(values)
    room = max(0.2 * (high - low), (8 - (high - low)) / 2, 0.5)
    return max(low - room, -3.0), min(high + room, 103.0)


def _extent(label: str) -> tuple[float, float]:
    lines = label.split("\n")
    return _LETTER * max(len(line) for line in lines), 15 * len(lines)
