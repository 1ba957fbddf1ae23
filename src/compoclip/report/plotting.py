"""Plots: one style for light and one for dark pages, colours that colour-blind people can
tell apart, markers besides colours, and the way from matplotlib to a data URI."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
from compoclip.report.wording import listed, percent, points, short, signed_interval

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
    light, dark = uris
    return Plot(title, alt, light, dark, *size)


Panel = tuple[str, Callable[[Axes, Theme], None]]
"""One of several axes of a figure: its title, and what draws it."""


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
        for axes, (title, draw) in zip(places, panels):
            axes.set_title(title, fontsize=12, loc="left", color=LIGHT.ink)
            draw(axes, LIGHT)
        png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
        write_atomically(png, lambda place: figure.savefig(place, format="png", dpi=144))
        write_atomically(svg, lambda place: figure.savefig(place, format="svg", metadata=_NOTHING))
    return png, svg


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


Box = tuple[float, float, float, float]


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    frame: tuple[float, float],
    taken: Sequence[Box] = (),
) -> list[tuple[float, float]]:
    """Lower left corners of labels next to their points, with as little overlap as possible.

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
        out = max(0.0, -left) + max(0.0, -bottom)
        out += max(0.0, right - frame[0]) + max(0.0, top - frame[1])
        return overlap + 100.0 * out

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

WIDTH, HEIGHT = 340, 310
_LETTER = 7.0  # mean width of a letter at the label size, in pixels


Ranged = Score | Estimate | MeasuredCell
"""A value with its 95 % interval, None for none, in [0, 1]."""


def ends(each: Ranged) -> tuple[float, float]:
    """The ends of its interval; the value itself without one."""
    if each.low is None or each.high is None:
        return each.value, each.value
    return each.low, each.high


def error_bar(each: Ranged) -> list[list[float]]:
    """Return the distances from the value to the ends of its interval, in points, for matplotlib.

    A value outside its interval, which a bootstrap allows, has a distance of 0.
    """
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
    others = list((published or {}).values())
    points = [(d.x.value, d.y.value) for d in dots]
    best = on_front(points) if front else []
    across = [v for d in dots for v in ends(d.x)] + [x for x, _ in others]
    up = [v for d in dots for v in ends(d.y)] + [y for _, y in others]
    limits = [_limits(across + up)] * 2 if diagonal else [_limits(across), _limits(up)]
    frame = (WIDTH - 66.0, HEIGHT - 54.0)
    scale = [frame[k] / (limits[k][1] - limits[k][0]) for k in (0, 1)]

    def pixel(x: float, y: float) -> tuple[float, float]:
        return (100 * x - limits[0][0]) * scale[0], (100 * y - limits[1][0]) * scale[1]

    texts = [short(d.name) + (f"\n{d.note}" if d.note else "") for d in dots]
    taken: list[Box] = []  # labels should cover no interval and no diagonal
    for dot in dots:
        (a, b), (c, d) = (pixel(x, y) for x, y in zip(ends(dot.x), ends(dot.y)))
        cx, cy = pixel(dot.x.value, dot.y.value)
        taken += [(a, cy - 2, c, cy + 2), (cx - 2, b, cx + 2, d)]
    marks = [pixel(*each) for each in others]
    marks += [pixel(v / 100, v / 100) for v in range(101)] if diagonal else []
    taken += [(x - 2, y - 2, x + 2, y + 2) for x, y in marks]
    extents = []
    for text in texts:
        rows = text.split("\n")
        extents.append((_LETTER * max(map(len, rows)), 15.0 * len(rows)))
    corners = place_labels([pixel(*point) for point in points], extents, frame, taken)

    def draw(axes: Axes, theme: Theme) -> None:
        for x, y in others:
            axes.scatter(100 * x, 100 * y, s=16, color=theme.soft, alpha=0.55, linewidths=0)
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
            axes.errorbar(
                100 * dot.x.value,
                100 * dot.y.value,
                xerr=error_bar(dot.x),
                yerr=error_bar(dot.y),
                fmt=MARKERS[dot.place % len(MARKERS)],
                color=theme.model(dot.place),
                markersize=8,
                elinewidth=1.1,
                capsize=0,
                zorder=3,
            )
        axes.set_xlim(*limits[0])
        axes.set_ylim(*limits[1])
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        for text, dot, corner in zip(texts, dots, corners):
            axes.text(
                corner[0] / scale[0] + limits[0][0],
                corner[1] / scale[1] + limits[1][0],
                text,
                color=theme.model(dot.place),
                linespacing=1.15,
                va="bottom",
                zorder=4,
            )

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
    """Axis limits in percent around values, with room for labels and a span of 8 at least.

    They end a little beyond 0 and 100, so that a mark there is whole and no tick lies outside.
    """
    span, first, last = 8.0, -0.9, 100.9
    low, high = 100 * min(values), 100 * max(values)
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
        for y, d in enumerate(reversed(rows)):
            way = direction(d)
            colour = {BETTER: theme.better, WORSE: theme.worse}.get(way, theme.soft)
            axes.plot([100 * v for v in spans[id(d)]], [y, y], color=colour, linewidth=2)
            axes.plot(
                100 * d.difference,
                y,
                marker={BETTER: "^", WORSE: "v"}.get(way, "o"),
                markersize=7,
                color=colour,
                markerfacecolor=colour if way in (BETTER, WORSE) else "none",
            )
        axes.set_yticks(range(len(rows)), [short(d.name) for d in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlim(-reach, reach)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"change against {short(study.base)}, points")

    plots = {}
    for model in study.others:
        differences = study.skills.differences[model].values()
        rows = sorted(differences, key=lambda d: -d.difference)
        said = "; ".join(
            f"{d.name} {points(d.difference)} ({signed_interval(d.low, d.high)}, {direction(d)})"
            for d in rows
        )
        alt = (
            f"Change of every skill, {model} against {study.base}, in points with 95 % "
            f"intervals: {said}"
        )
        size = (WIDTH, 58 + 19 * len(rows))
        plots[model] = plot("", alt, size, partial(draw, rows=rows))
    return plots


def invariance(study: Study) -> list[Plot]:
    """Plot accuracy without and with the paraphrase, for each benchmark with hard positives."""
    plots = []
    for name, table in study.triples.items():
        dots = []
        for place, model in enumerate(study.models):
            scores = table.scores[model]
            brittle = f"brittle {percent(scores[BRITTLENESS].value)}"
            dots.append(Dot(model, place, scores[SENSITIVITY], scores[INVARIANCE], brittle))
        plots.append(
            scatter(
                dots,
                ("negative below the caption, %", "negative below the paraphrase too, %"),
                title=name,
                about=f"Sensitivity against invariance on {name}",
                diagonal=True,
            )
        )
    return plots


def tradeoff(study: Study) -> list[Plot]:
    """Plot compositionality against zero-shot accuracy, and against retrieval."""
    groups, scores = study.profile.groups, study.profile.scores
    found = []
    for name, label in ((RECOGNITION, "zero-shot accuracy"), (RETRIEVAL, "retrieval R@1")):
        if COMPOSITION in groups and name in groups:
            dots = [
                Dot(model, place, scores[model][COMPOSITION], scores[model][name])
                for place, model in enumerate(study.models)
            ]
            found.append(
                scatter(
                    dots,
                    ("compositionality, %", f"{label}, %"),
                    title=f"Compositionality and {label}",
                    about=f"{name} against compositionality",
                    front=True,
                )
            )
    return found


_FAR = 30.0  # points below the curves; chance lower than that would flatten them


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
            place = places[name]
            colour = theme.model(place)
            if curve.interval is None:
                axes.plot(curve.steps, curve.values, color=colour, linewidth=0.8, alpha=0.3)
            else:
                axes.fill_between(curve.steps, *curve.interval, color=colour, alpha=0.15, lw=0)
            marked = curve.interval or len(curve.steps) == 1
            axes.plot(
                curve.steps,
                curve.smooth,
                color=colour,
                linewidth=1.8,
                linestyle=DASHES[place % len(DASHES)],
                marker=MARKERS[place % len(MARKERS)] if marked else "",
                markersize=5,
                label=short(name),
            )
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
            f"{name} from {curve.smooth[0]:.4g} to {curve.smooth[-1]:.4g} "
            f"in {curve.steps[-1]} steps"
            for name, curve in curves.items()
        )
        chance = next(iter(curves.values())).chance
        if chance is not None:
            said += f"; with 95 % intervals; dotted: chance, {chance:.4g}"
        size = (WIDTH, 230 + 16 * ((len(curves) + 1) // 2))
        alt = f"{quantity} during training. {said}"
        plots.append(plot(quantity, alt, size, partial(draw, curves=curves)))
    return plots
