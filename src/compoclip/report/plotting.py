"""Plots: one style for light and one for dark pages, colours that colour-blind people can
tell apart, markers besides colours, and the way from matplotlib to a data URI."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from compoclip.console import counted
from compoclip.evaluation.grounded import MEAN
from compoclip.evaluation.groups import (
    BRITTLENESS,
    COMPOSITION,
    INVARIANCE,
    SENSITIVITY,
)
from compoclip.evaluation.published.measured import MeasuredCell
from compoclip.evaluation.results import Score
from compoclip.evaluation.statistics import Estimate
from compoclip.files import write_atomically
from compoclip.report.findings import SAME, direction, recognised, skill_rows
from compoclip.report.study import Levels, Study, curves_of
from compoclip.report.training import LogCurve, Run
from compoclip.report.wording import interval, percent, short

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (3, 3)))
# Okabe and Ito's colours, darker on white and lighter on black; the base is grey.
_LIGHT = ("#5f6670", "#0072b2", "#c44e00", "#00805c", "#a8518a", "#8a6d00", "#2b86b8", "#7a3b00")
_DARK = ("#a7b0bc", "#56b4e9", "#ff9a57", "#35c79b", "#e39bc9", "#e6c229", "#9fd4f2", "#d9a37a")
_NOTHING = {"Date": None, "Creator": None, "Format": None, "Type": None}  # equal bytes every time
WIDTH, HEIGHT = 340, 310
CHANGES_WIDTH = 520
_LETTER, _LINE = 7.0, 15.0  # mean width of a letter and height of a line of labels, in pixels
_NEAR = 18.0  # pixels between a marker and a label that belong together without a line
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
        return overlap + 100.0 * sum(max(0.0, excess) for excess in out)

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


def ends(estimate: Ranged) -> tuple[float, float]:
    """Return the ends of its interval; the value itself without one."""
    if estimate.low is None or estimate.high is None:
        return estimate.value, estimate.value
    return estimate.low, estimate.high


def error_bar(estimate: Ranged) -> list[list[float]]:
    """Return the distances from the value to the ends of its interval, in points, for matplotlib.

    A value outside its interval, which a bootstrap allows, has a distance of 0.
    """
    low, high = ends(estimate)
    return [[100 * max(0.0, estimate.value - low)], [100 * max(0.0, high - estimate.value)]]


class Dot(NamedTuple):
    """A model: its place among the models, both scores, and a line below its name."""

    name: str
    place: int
    x: Ranged
    y: Ranged
    note: str = ""


def scatter(
    dots: Sequence[Dot],
    labels: tuple[str, str],
    *,
    title: str,
    about: str,
    diagonal: bool = False,
    arrows: bool = False,
    published: Mapping[str, tuple[float, float]] | None = None,
) -> Plot:
    """Draw models by two scores.

    labels: of the axes. diagonal: draw where both are equal, on axes that both show it. arrows:
    draw one from the first model to each other. published: points of other models, in grey."""
    others = [(100 * x, 100 * y) for x, y in (published or {}).values()]
    places = [(100 * d.x.value, 100 * d.y.value) for d in dots]
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
    marks = [pixel(*point) for point in others]
    marks += [pixel(v, v) for v in range(101)] if diagonal else []
    taken += [(x - 2, y - 2, x + 2, y + 2) for x, y in marks]
    texts = [short(d.name) + (f"\n{d.note}" if d.note else "") for d in dots]
    rows = [text.split("\n") for text in texts]
    extents = [(_LETTER * max(map(len, lines)), _LINE * len(lines)) for lines in rows]
    corners = place_labels([pixel(*place) for place in places], extents, frame, taken)

    def draw(axes: Axes, theme: Theme) -> None:
        for x, y in others:
            axes.scatter(x, y, s=16, color=theme.soft, alpha=0.55, linewidths=0)
        for place in places[1:] if arrows else ():
            style = {"arrowstyle": "->", "color": theme.soft, "shrinkA": 6, "shrinkB": 6}
            axes.annotate("", place, places[0], arrowprops=style)
        if diagonal:
            axes.plot([0, 100], [0, 100], color=theme.soft, linewidth=1, linestyle=(0, (4, 3)))
        for text, dot, place, (a, b), extent in zip(texts, dots, places, corners, extents):
            look = {**theme.line(dot.place), "linestyle": "none", "markersize": 8, "zorder": 3}
            axes.errorbar(*place, error_bar(dot.y), error_bar(dot.x), elinewidth=1.1, **look)
            corner = a / scale[0] + limits[0][0], b / scale[1] + limits[1][0]
            colour = look["color"]
            if leader := _leader(pixel(*place), (a, b), extent):
                line = [[v / scale[k] + limits[k][0] for v in values] for k, values in leader]
                axes.plot(*line, color=colour, linewidth=0.8, alpha=0.7)
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
    alt = f"{about}, with 95 % intervals. {'; '.join(said)}."
    return plot(title, alt, (WIDTH, HEIGHT), draw)


def _leader(
    point: tuple[float, float], corner: tuple[float, float], extent: tuple[float, float]
) -> list[tuple[int, tuple[float, float]]]:
    """Return (axis, both ends) of a line from a marker to its label; [] where the label is near."""
    gap = [min(max(p, c), c + e) - p for p, c, e in zip(point, corner, extent)]
    length = math.hypot(*gap)
    if length < _NEAR:
        return []
    return [(k, (point[k] + 8 * gap[k] / length, point[k] + gap[k])) for k in (0, 1)]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return axis limits around percentages, with room for labels and a span of 8 at least.

    They end a little beyond 0 and 100, so that a mark there is whole and no tick lies outside.
    """
    span, first, last = 8.0, -0.9, 100.9
    low, high = min(values), max(values)
    room = max(0.2 * (high - low), (span - (high - low)) / 2, 0.5)
    return max(min(low - room, last - span), first), min(max(high + room, first + span), last)


# --- The plots of the report, each with a text that says what it shows. ---


_ROW, _MARK = 16, 9  # heights of a row with one mark, and of each further mark, in pixels


def changes(study: Study) -> Plot | None:
    """Plot the change of every skill against the base: a row per skill, in the order of the table,
    with a mark per model. None where nothing changed significantly."""
    names = [
        row.name
        for row in skill_rows(study)
        if any(direction(study.skills.differences[m][row.name]) != SAME for m in study.others)
    ]
    if not names:
        return None
    rows = {name: [study.skills.differences[m][name] for m in study.others] for name in names}
    spans = {
        name: [ends(Estimate(d.difference, d.low, d.high)) for d in differences]
        for name, differences in rows.items()
    }
    edges = [100 * value for row in spans.values() for span in row for value in span]
    room = 0.04 * (max(*edges, 0.0) - min(*edges, 0.0))
    size = (CHANGES_WIDTH, 58 + len(names) * (_ROW + _MARK * (len(study.others) - 1)))

    def draw(axes: Axes, theme: Theme) -> None:
        axes.axvline(0, color=theme.soft, linewidth=1)
        step = _MARK / (_ROW + _MARK * (len(study.others) - 1))
        for y, name in enumerate(names):
            for place, (d, span) in enumerate(zip(rows[name], spans[name])):
                height = y + (place - (len(study.others) - 1) / 2) * step
                look = {**theme.line(place + 1), "linestyle": "none", "markersize": 6}
                face = "none" if direction(d) == SAME else look["color"]
                axes.plot([100 * v for v in span], [height] * 2, color=look["color"], linewidth=1.2)
                axes.plot(100 * d.difference, height, markerfacecolor=face, **look)
        axes.set_yticks(range(len(names)), [short(name, 44) for name in names])
        axes.set(ylim=(len(names) - 0.5, -0.5), xlim=(min(*edges, 0) - room, max(*edges, 0) + room))
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"change against {short(study.base)}, points")

    texts = [
        f"{name}: "
        + ", ".join(
            f"{model} {percent(d.difference, '+')} ({interval(d.low, d.high, '+')}, {direction(d)})"
            for model, d in zip(study.others, differences)
        )
        for name, differences in rows.items()
    ]
    alt = f"Change of every skill against {study.base}, in points with 95 % intervals"
    return plot("", f"{alt}. {'; '.join(texts)}.", size, draw)


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
    """Plot what was gained against what fell most: zero-shot accuracy or a direction of retrieval.

    Two of these at most, those in which a model loses most. Gains are the mean grounded gain, or
    compositionality where there is none.
    """
    means = {model.model: model.mean() for model in study.grounded.models}
    gains: dict[str, Ranged] = {m: mean for m, mean in means.items() if mean is not None}
    label = f"{MEAN}, points"
    if len(gains) < len(study.models):
        if COMPOSITION not in study.profile.groups:
            return []
        gains = {model: study.profile.scores[model][COMPOSITION] for model in study.models}
        label = "compositionality, %"
    table = study.skills
    costs = {
        name: min((table.differences[m][name].difference for m in study.others), default=0.0)
        for name in recognised(study)
    }
    plots = []
    for name in sorted(costs, key=lambda name: costs[name])[:2]:
        dots = [
            Dot(model, place, gains[model], table.scores[model][name])
            for place, model in enumerate(study.models)
        ]
        about = f"{name} against {label}"
        plots.append(scatter(dots, (label, f"{name}, %"), title=name, about=about, arrows=True))
    return plots


def training(runs: Sequence[Run], models: Sequence[str]) -> list[Plot]:
    """Make a plot per logged quantity, with a line per run in the colour of its model."""
    names = dict.fromkeys(name for run in runs for name in run.curves)
    measured = {name for run in runs for name, curve in run.curves.items() if curve.interval}
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
        axes.set_xlabel("step")
        _finish_lines(axes, theme, next(iter(curves.values())).chance)

    plots = []
    for quantity in quantities:
        curves = {run.name: run.curves[quantity] for run in runs if quantity in run.curves}
        said = "; ".join(
            f"{name} from {curve.smooth[0]:.4g} to {curve.smooth[-1]:.4g} "
            f"in {counted(curve.steps[-1], 'step')}"
            for name, curve in curves.items()
        )
        chance = next(iter(curves.values())).chance
        if chance is not None:
            said += f"; with 95 % intervals; dotted: chance, {chance:.4g}"
        alt = f"{quantity} during training. {said}"
        plots.append(plot(quantity, alt, _size(len(curves)), partial(draw, curves=curves)))
    return plots


def _size(lines: int) -> tuple[int, int]:
    """Return the size of a plot with a legend of so many lines above it."""
    return WIDTH, 230 + 16 * ((lines + 1) // 2)


def _finish_lines(axes: Axes, theme: Theme, chance: float | None) -> None:
    """Draw chance, label the axis across with whole numbers, and name the lines above the plot."""
    if chance is not None and chance > axes.get_ylim()[0] - _FAR:
        axes.axhline(chance, color=theme.soft, linewidth=1, linestyle=(0, (1, 3)))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=10, handlelength=2.6,
        borderaxespad=0.2,
    )  # fmt: skip


def levels(study: Study) -> dict[str, list[Plot]]:
    """Make the plots of `curves_of` of each benchmark, with a line per model."""

    def draw(axes: Axes, theme: Theme, curve: str, scores: Levels) -> None:
        for place, model in enumerate(study.models):
            points = {level: of[model] for level, of in scores.items() if model in of}
            if not points:
                continue
            look = theme.line(place)
            values = [100 * score.value for score in points.values()]
            axes.plot([*points], values, label=short(model), markersize=5, **look)
            low, high = ([100 * end for end in side] for side in zip(*map(ends, points.values())))
            axes.fill_between([*points], low, high, color=look["color"], alpha=0.15, lw=0)
        axes.set(xlabel=curve.rpartition("_")[2], ylabel="%")
        _finish_lines(axes, theme, 100 * next(iter(next(iter(scores.values())).values())).chance)

    plots: dict[str, list[Plot]] = {}
    for benchmark in study.benchmarks:
        for curve, scores in curves_of(study, benchmark).items():
            values = "; ".join(
                f"{level}: {', '.join(f'{m} {percent(s.value)}' for m, s in of.items())}"
                for level, of in scores.items()
            )
            alt = f"{benchmark} by {curve}, with 95 % intervals; dotted: chance. {values}."
            models = {model for of in scores.values() for model in of}
            draw_here = partial(draw, curve=curve, scores=scores)
            plots.setdefault(benchmark, []).append(plot(curve, alt, _size(len(models)), draw_here))
    return plots
