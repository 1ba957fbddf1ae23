"""Plots: one style for light and one for dark pages, colours that colour-blind people can
tell apart, markers besides colours, and the way from matplotlib to a data URI."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compoclip.evaluation.comparison import Difference
from compoclip.evaluation.groups import (
    BRITTLENESS,
    COMPOSITION,
    INVARIANCE,
    RECOGNITION,
    RETRIEVAL,
    SENSITIVITY,
)
from compoclip.evaluation.published.beside import MeasuredCell
from compoclip.evaluation.results import Score
from compoclip.evaluation.statistics import Estimate
from compoclip.files import write_atomically
from compoclip.report.findings import BETTER, WORSE, direction
from compoclip.report.study import Study
from compoclip.report.training import LogCurve, Run
from compoclip.report.wording import interval, listed, percent, short

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (3, 3)))
# Okabe and Ito's colours, darker on white and lighter on black; the base is grey.
_LIGHT = ("#5f6670", "#0072b2", "#c44e00", "#00805c", "#a8518a", "#8a6d00", "#2b86b8", "#7a3b00")
_DARK = ("#a7b0bc", "#56b4e9", "#ff9a57", "#35c79b", "#e39bc9", "#e6c229", "#9fd4f2", "#d9a37a")
_NOTHING = {"Date": None, "Creator": None, "Format": None, "Type": None}  # equal bytes every time
WIDTH, HEIGHT = 340, 310
_LETTER, _LINE = 7.0, 15.0  # mean width of a letter and height of a line of labels, in pixels
_FAR = 30.0  # points below the curves; chance lower than that would flatten them


class Theme(NamedTuple):
    """Colours of a plot. models: by position, the base first."""

    ink: str
    soft: str
    grid: str
    better: str
    worse: str
    models: tuple[str, ...]

    def model(self, position: int) -> str:
        """Return the colour of the model at this position."""
        return self.models[position % len(self.models)]

    def line(self, position: int) -> dict[str, Any]:
        """Return colour, marker and dashes of the line of the model at this position."""
        marker, dashes = MARKERS[position % len(MARKERS)], DASHES[position % len(DASHES)]
        return {"color": self.model(position), "marker": marker, "linestyle": dashes}


LIGHT = Theme("#1c2430", "#5f6670", "#dfe3e8", "#0072b2", "#c44e00", _LIGHT)
DARK = Theme("#e8ebf0", "#a7b0bc", "#3a424d", "#56b4e9", "#ff9a57", _DARK)


class Plot(NamedTuple):
    """A plot as two data URIs, light and dark, with its size in CSS pixels, and what it shows in
    words (`alt`). title: shown above it."""

    title: str
    alt: str
    light: str
    dark: str
    width: int
    height: int


def plot(title: str, alt: str, size: tuple[int, int], draw: Callable[[Axes, Theme], None]) -> Plot:
    """Draw once per theme; `size` in CSS pixels."""
    uris = []
    for theme in (LIGHT, DARK):
        with rc_context(_style(theme)):
            figure = Figure(figsize=(size[0] / 72, size[1] / 72), layout="constrained")
            figure.patch.set_alpha(0.0)
            axes = figure.add_subplot()
            axes.patch.set_alpha(0.0)
            draw(axes, theme)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="svg", metadata=_NOTHING)
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        uris.append(f"data:image/svg+xml;base64,{data}")
    return Plot(title, alt, uris[0], uris[1], *size)


Panel = tuple[str, Callable[[Axes, Theme], None]]
"""One of several axes of a figure: its title, and what draws it."""


def write_figure(stem: Path, panels: Sequence[Panel], size: tuple[int, int]) -> tuple[Path, Path]:
    """Write panels in rows of three, on white, as STEM.png and STEM.svg; `size` of each in CSS
    pixels.

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
        for axes, (title, draw) in zip(places, panels):
            axes.set_title(title, fontsize=12, loc="left", color=LIGHT.ink)
            draw(axes, LIGHT)
        png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
        write_atomically(png, lambda place: figure.savefig(place, format="png", dpi=144))
        write_atomically(svg, lambda place: figure.savefig(place, format="svg", metadata=_NOTHING))
    return png, svg


def _style(theme: Theme) -> dict[Any, object]:
    spines = ("axes.spines.top", "axes.spines.right", "axes.formatter.useoffset", "legend.frameon")
    inks = ("axes.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor")
    return {
        **dict.fromkeys(spines, False),
        **dict.fromkeys(inks, theme.ink),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), theme.soft),
        "text.parse_math": False,  # a "$" in a name is a "$"
        "svg.fonttype": "none",  # text stays text: small files, and the reader's own font
        "svg.hashsalt": "compoclip",  # ids, and so bytes, are the same every time
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Segoe UI", "Helvetica", "Arial"],
        "font.size": 11,
        "axes.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.7,
    }


Box = tuple[float, float, float, float]


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    frame: tuple[float, float],
    taken: Sequence[Box] = (),
) -> list[tuple[float, float]]:
    """Return lower left corners of labels next to their points, with as little overlap as possible.

    points, sizes, frame, taken: in pixels, the frame from (0, 0); taken: boxes (left, bottom,
    right, top) to keep free. Greedy: each label takes the best of places around its point, by its
    overlap with other boxes and a hundred times what sticks out of the frame.
    """
    boxes = [*taken, *((x - 6, y - 6, x + 6, y + 6) for x, y in points)]
    corners: list[tuple[float, float]] = []

    def cost(left: float, bottom: float, w: float, h: float) -> float:
        right, top = left + w, bottom + h
        overlap = sum(
            max(0.0, min(right, r) - max(left, a)) * max(0.0, min(top, t) - max(bottom, b))
            for a, b, r, t in boxes
        )
        out = (-left, -bottom, right - frame[0], top - frame[1])
        return overlap + 100.0 * sum(max(0.0, each) for each in out)

    for (x, y), (w, h) in zip(points, sizes):
        places = [
            (x + dx, y + dy)
            for far in (8, 16, 28, 42, 60)
            for dx, dy in (
                *((right, up) for right in (far, -w - far) for up in (far / 2, -h - far / 2)),
                *((right, -h / 2) for right in (far, -w - far)),
                *((-w / 2, up) for up in (far, -h - far)),
            )
        ]
        costs = [cost(a, b, w, h) + 0.01 * order for order, (a, b) in enumerate(places)]
        a, b = places[costs.index(min(costs))]
        boxes.append((a, b, a + w, b + h))
        corners.append((a, b))
    return corners


# --- One score against another: models with their intervals, and a front. ---

Ranged = Score | Estimate | MeasuredCell
"""A value with its 95 % interval, None for none, in [0, 1]."""


def ends(each: Ranged) -> tuple[float, float]:
    """Return the ends of its interval; the value itself without one."""
    if each.low is None or each.high is None:
        return each.value, each.value
    return each.low, each.high


def error_bar(each: Ranged) -> list[list[float]]:
    """Return the distances from the value to the ends of its interval, in points, for matplotlib.

    A value outside its interval, which a bootstrap allows, has a distance of 0.
    """
    low, high = ends(each)
    return [[100 * max(0.0, each.value - low)], [100 * max(0.0, high - each.value)]]


class Dot(NamedTuple):
    """A model: its place among the models, both scores, and a line below its name."""

    name: str
    place: int
    x: Ranged
    y: Ranged
    note: str = ""


def on_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the Pareto-optimal points, from left to right.

    No other point is higher on one axis and at least as high on the other. Equal points all count.
    """
    free = [
        k
        for k, (x, y) in enumerate(points)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
    ]
    return sorted(free, key=lambda k: (points[k][0], -points[k][1]))


def scatter(
    dots: Sequence[Dot],
    labels: tuple[str, str],
    *,
    title: str,
    about: str,
    diagonal: bool = False,
    front: bool = False,
    published: Mapping[str, tuple[float, float]] | None = None,
) -> Plot:
    """Draw models by two scores.

    labels: of the axes. diagonal: draw where both are equal, on axes that both show it. front:
    draw the Pareto front. published: points of other models, in grey."""
    others = [(100 * x, 100 * y) for x, y in (published or {}).values()]
    places = [(100 * d.x.value, 100 * d.y.value) for d in dots]
    best = on_front(places) if front else []
    across = [100 * end for d in dots for end in ends(d.x)] + [x for x, _ in others]
    up = [100 * end for d in dots for end in ends(d.y)] + [y for _, y in others]
    limits = [_limits(across + up)] * 2 if diagonal else [_limits(across), _limits(up)]
    frame = (WIDTH - 66.0, HEIGHT - 54.0)
    scale = [frame[k] / (limits[k][1] - limits[k][0]) for k in (0, 1)]

    def pixel(x: float, y: float) -> tuple[float, float]:
        return (x - limits[0][0]) * scale[0], (y - limits[1][0]) * scale[1]

    taken: list[Box] = []  # labels should cover no interval and no diagonal
    for dot, place in zip(dots, places):
        (a, b), (c, d) = (pixel(100 * x, 100 * y) for x, y in zip(ends(dot.x), ends(dot.y)))
        cx, cy = pixel(*place)
        taken += [(a, cy - 2, c, cy + 2), (cx - 2, b, cx + 2, d)]
    marks = [pixel(*each) for each in others]
    marks += [pixel(v, v) for v in range(101)] if diagonal else []
    taken += [(x - 2, y - 2, x + 2, y + 2) for x, y in marks]
    texts = [short(d.name) + (f"\n{d.note}" if d.note else "") for d in dots]
    rows = [text.split("\n") for text in texts]
    extents = [(_LETTER * max(map(len, each)), _LINE * len(each)) for each in rows]
    corners = place_labels([pixel(*place) for place in places], extents, frame, taken)

    def draw(axes: Axes, theme: Theme) -> None:
        for x, y in others:
            axes.scatter(x, y, s=16, color=theme.soft, alpha=0.55, linewidths=0)
        if len(best) > 1:
            style: dict[str, Any] = {"color": theme.soft, "linewidth": 1.1}
            across, up = zip(*(places[k] for k in best))
            axes.step(across, up, zorder=1, linestyle=(0, (1, 2)), **style)
        if diagonal:
            axes.plot([0, 100], [0, 100], color=theme.soft, linewidth=1, linestyle=(0, (4, 3)))
        for text, dot, place, (a, b) in zip(texts, dots, places, corners):
            look = {**theme.line(dot.place), "linestyle": "none", "markersize": 8, "zorder": 3}
            axes.errorbar(*place, error_bar(dot.y), error_bar(dot.x), elinewidth=1.1, **look)
            corner = a / scale[0] + limits[0][0], b / scale[1] + limits[1][0]
            colour = look["color"]
            axes.text(*corner, text, color=colour, linespacing=1.15, va="bottom", zorder=4)
        axes.set(xlim=limits[0], ylim=limits[1], xlabel=labels[0], ylabel=labels[1])

    said = [
        f"{d.name}: {percent(d.x.value)} across, {percent(d.y.value)} up"
        + (f", {d.note}" if d.note else "")
        for d in dots
    ]
    said += [
        f"{n} as published: {percent(x)}, {percent(y)}" for n, (x, y) in (published or {}).items()
    ]
    leaders = f" On the front: {listed([dots[k].name for k in best])}." if best else ""
    alt = f"{about}, with 95 % intervals. {'; '.join(said)}.{leaders}"
    return plot(title, alt, (WIDTH, HEIGHT), draw)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return axis limits around percentages, with room for labels and a span of 8 at least.

    They end a little beyond 0 and 100, so that a mark there is whole and no tick lies outside.
    """
    span, first, last = 8.0, -0.9, 100.9
    low, high = min(values), max(values)
    room = max(0.2 * (high - low), (span - (high - low)) / 2, 0.5)
    return max(min(low - room, last - span), first), min(max(high + room, first + span), last)


# --- The plots of the report, each with a text that says what it shows. ---


def changes(study: Study) -> dict[str, Plot]:
    """Return by model the change of every skill against the base, the largest first."""
    everything = [d for m in study.others for d in study.skills.differences[m].values()]
    spans = {id(d): ends(Estimate(d.difference, d.low, d.high)) for d in everything}
    reach = 100 * max([0.02, *(abs(v) for span in spans.values() for v in span)]) * 1.08

    def draw(axes: Axes, theme: Theme, rows: Sequence[Difference]) -> None:
        axes.axvline(0, color=theme.soft, linewidth=1)
        ways = {BETTER: (theme.better, "^"), WORSE: (theme.worse, "v")}
        for y, d in enumerate(reversed(rows)):
            colour, marker = ways.get(direction(d), (theme.soft, "o"))
            face = "none" if marker == "o" else colour
            axes.plot([100 * v for v in spans[id(d)]], [y, y], color=colour, linewidth=2)
            style: dict[str, Any] = {"color": colour, "marker": marker, "markerfacecolor": face}
            axes.plot(100 * d.difference, y, markersize=7, **style)
        axes.set_yticks(range(len(rows)), [short(d.name) for d in reversed(rows)])
        axes.set(ylim=(-0.6, len(rows) - 0.4), xlim=(-reach, reach))
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"change against {short(study.base)}, points")

    plots = {}
    for model in study.others:
        differences = study.skills.differences[model].values()
        rows = sorted(differences, key=lambda d: -d.difference)
        said = "; ".join(
            f"{d.name} {percent(d.difference, '+')} "
            f"({interval(d.low, d.high, '+')}, {direction(d)})"
            for d in rows
        )
        alt = f"Change of every skill, {model} against {study.base}, in points with 95 % intervals"
        size = (WIDTH, 58 + 19 * len(rows))
        plots[model] = plot("", f"{alt}: {said}", size, partial(draw, rows=rows))
    return plots


def invariance(study: Study) -> list[Plot]:
    """Plot accuracy without and with the paraphrase, for each benchmark with hard positives."""
    labels = ("negative below the caption, %", "negative below the paraphrase too, %")
    plots = []
    for name, table in study.triples.items():
        dots = []
        for place, model in enumerate(study.models):
            scores = table.scores[model]
            brittle = f"brittle {percent(scores[BRITTLENESS].value)}"
            dots.append(Dot(model, place, scores[SENSITIVITY], scores[INVARIANCE], brittle))
        about = f"Sensitivity against invariance on {name}"
        plots.append(scatter(dots, labels, title=name, about=about, diagonal=True))
    return plots


def tradeoff(study: Study) -> list[Plot]:
    """Plot compositionality against zero-shot accuracy, and against retrieval."""
    groups, scores = study.profile.groups, study.profile.scores
    found = []
    for name, label in ((RECOGNITION, "zero-shot accuracy"), (RETRIEVAL, "retrieval R@1")):
        if {COMPOSITION, name} <= groups.keys():
            dots = [
                Dot(model, place, scores[model][COMPOSITION], scores[model][name])
                for place, model in enumerate(study.models)
            ]
            title, about = f"Compositionality and {label}", f"{name} against compositionality"
            axes = ("compositionality, %", f"{label}, %")
            found.append(scatter(dots, axes, title=title, about=about, front=True))
    return found


def training(runs: Sequence[Run], models: Sequence[str]) -> list[Plot]:
    """Make a plot per logged quantity, with a line per run in the colour of its model."""
    names = dict.fromkeys(name for run in runs for name in run.curves)
    measured = {name for run in runs for name, each in run.curves.items() if each.interval}
    quantities = sorted(
        names, key=lambda name: (name != "loss", name not in measured, not name.startswith("loss"))
    )
    free = iter(range(max(1, len(models)), 1000))
    places = {
        run.name: models.index(run.name) if run.name in models else next(free) for run in runs
    }

    def draw(axes: Axes, theme: Theme, curves: Mapping[str, LogCurve]) -> None:
        for name, curve in curves.items():
            look = theme.line(places[name])
            if curve.interval is None:
                axes.plot(curve.steps, curve.values, color=look["color"], linewidth=0.8, alpha=0.3)
                look |= {} if len(curve.steps) == 1 else {"marker": ""}
            else:
                low, high = curve.interval
                axes.fill_between(curve.steps, low, high, color=look["color"], alpha=0.15, lw=0)
            look |= {"linewidth": 1.8, "markersize": 5, "label": short(name)}
            axes.plot(curve.steps, curve.smooth, **look)
        chance = next(iter(curves.values())).chance
        if chance is not None and chance > axes.get_ylim()[0] - _FAR:
            axes.axhline(chance, color=theme.soft, linewidth=1, linestyle=(0, (1, 3)))
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=10, handlelength=2.6,
            borderaxespad=0.2,
        )  # fmt: skip

    plots = []
    for quantity in quantities:
        curves = {run.name: run.curves[quantity] for run in runs if quantity in run.curves}
        said = "; ".join(
            f"{name} from {each.smooth[0]:.4g} to {each.smooth[-1]:.4g} in {each.steps[-1]} steps"
            for name, each in curves.items()
        )
        chance = next(iter(curves.values())).chance
        if chance is not None:
            said += f"; with 95 % intervals; dotted: chance, {chance:.4g}"
        size = (WIDTH, 230 + 16 * ((len(curves) + 1) // 2))
        alt = f"{quantity} during training. {said}"
        plots.append(plot(quantity, alt, size, partial(draw, curves=curves)))
    return plots
