"""The plots of the report, each with a text that says what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from compoclip.evaluation.profile import (
    BRITTLENESS,
    COMPOSITION,
    INVARIANCE,
    RECOGNITION,
    RETRIEVAL,
    SENSITIVITY,
)
from compoclip.evaluation.results import Score
from compoclip.report.findings import BETTER, WORSE, direction
from compoclip.report.plotting import DASHES, MARKERS, Plot, Theme, place_labels, plot
from compoclip.report.study import Study, Table
from compoclip.report.training import Run
from compoclip.report.wording import percent, points, short, signed_interval

WIDTH = 340
_LETTER = 7.0  # mean width of a letter at the label size, in pixels


def changes(study: Study) -> tuple[Plot, ...]:
    """One plot a model: the change of every skill against the base with its interval."""
    everything = [d for m in study.others for d in study.skills.differences[m].values()]
    reach = 100 * max([0.02, *(abs(v) for d in everything for v in (d.low, d.high))]) * 1.08
    plots = []
    for model in study.others:
        rows = list(study.skills.differences[model].values())

        def draw(axes: Axes, theme: Theme, rows: Sequence = tuple(rows)) -> None:  # type: ignore[type-arg]
            axes.axvline(0, color=theme.soft, linewidth=1)
            for y, d in enumerate(reversed(rows)):
                way = direction(d)
                colour = {BETTER: theme.better, WORSE: theme.worse}.get(way, theme.soft)
                marker = {BETTER: "^", WORSE: "v"}.get(way, "o")
                axes.plot([100 * d.low, 100 * d.high], [y, y], color=colour, linewidth=2)
                axes.plot(
                    100 * d.difference,
                    y,
                    marker=marker,
                    markersize=8,
                    color=colour,
                    markerfacecolor="none" if way not in (BETTER, WORSE) else colour,
                )
            axes.set_yticks(range(len(rows)), [short(d.name) for d in reversed(rows)])
            axes.set_ylim(-0.6, len(rows) - 0.4)
            axes.set_xlim(-reach, reach)
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
            axes.set_xlabel(f"change against {short(study.base)}, points")

        alt = "; ".join(
            f"{d.name} {points(d.difference)} ({signed_interval(d.low, d.high)}, {direction(d)})"
            for d in rows
        )
        plots.append(
            plot(
                model,
                f"Change of every skill, {model} against {study.base}, in points with 95 % "
                f"intervals: {alt}",
                (WIDTH, 66 + 25 * len(rows)),
                draw,
            )
        )
    return tuple(plots)


def invariance(study: Study) -> tuple[Plot, ...]:
    """One scatter a benchmark with hard positives: accuracy without and with the rewording."""
    return tuple(
        _scatter(
            study.models,
            table.scores,
            (SENSITIVITY, "foil below the caption, %"),
            (INVARIANCE, "foil below caption and rewording, %"),
            title=name,
            about=f"Sensitivity against invariance on {name}",
            note=lambda scores: f"brittle {percent(scores[BRITTLENESS].value)}",
            diagonal=True,
        )
        for name, table in study.triples.items()
    )


def tradeoff(study: Study) -> tuple[Plot, ...]:
    """Compositionality against zero-shot accuracy, and against retrieval."""
    table: Table = study.profile
    if COMPOSITION not in table.groups:
        return ()
    across = (COMPOSITION, "compositionality, %")
    return tuple(
        _scatter(
            study.models,
            table.scores,
            across,
            (name, f"{label}, %"),
            title=name,
            about=f"{name} against compositionality",
        )
        for name, label in ((RECOGNITION, "zero-shot accuracy"), (RETRIEVAL, "retrieval R@1"))
        if name in table.groups
    )


def _scatter(
    models: Sequence[str],
    scores: Mapping[str, Mapping[str, Score]],
    across: tuple[str, str],
    up: tuple[str, str],
    title: str,
    about: str,
    note: Callable[[Mapping[str, Score]], str] | None = None,
    diagonal: bool = False,
) -> Plot:
    size = (WIDTH, 310)
    labels = [short(m) + (f"\n{note(scores[m])}" if note else "") for m in models]

    def draw(axes: Axes, theme: Theme) -> None:
        both = [(scores[m][across[0]], scores[m][up[0]]) for m in models]
        limits = [
            _limits([v for pair in both for v in (pair[k].low, pair[k].high)]) for k in (0, 1)
        ]
        for k, (x, y) in enumerate(both):
            axes.errorbar(
                100 * x.value,
                100 * y.value,
                xerr=[[100 * (x.value - x.low)], [100 * (x.high - x.value)]],
                yerr=[[100 * (y.value - y.low)], [100 * (y.high - y.value)]],
                fmt=MARKERS[k % len(MARKERS)],
                color=theme.model(k),
                markersize=8,
                elinewidth=1.1,
                capsize=0,
                zorder=3,
            )
        if diagonal:
            axes.plot([0, 100], [0, 100], color=theme.soft, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_xlim(*limits[0])
        axes.set_ylim(*limits[1])
        axes.set_xlabel(across[1])
        axes.set_ylabel(up[1])
        frame = (size[0] - 66.0, size[1] - 54.0)
        scale = [frame[k] / (limits[k][1] - limits[k][0]) for k in (0, 1)]

        def pixel(x: float, y: float) -> tuple[float, float]:
            return (100 * x - limits[0][0]) * scale[0], (100 * y - limits[1][0]) * scale[1]

        bars = []
        for x, y in both:
            (a, b), (c, d) = pixel(x.low, y.low), pixel(x.high, y.high)
            cx, cy = pixel(x.value, y.value)
            bars += [(a, cy - 2, c, cy + 2), (cx - 2, b, cx + 2, d)]
        if diagonal:
            line = [pixel(v / 100, v / 100) for v in range(101)]
            bars += [(x - 2, y - 2, x + 2, y + 2) for x, y in line]
        where = place_labels(
            [pixel(x.value, y.value) for x, y in both],
            [_extent(label) for label in labels],
            frame,
            bars,
        )
        for k, (label, corner) in enumerate(zip(labels, where)):
            axes.text(
                corner[0] / scale[0] + limits[0][0],
                corner[1] / scale[1] + limits[1][0],
                label,
                color=theme.model(k),
                fontsize=11,
                linespacing=1.15,
                va="bottom",
                zorder=4,
            )

    told = "; ".join(
        f"{m}: {percent(scores[m][across[0]].value)} across, {percent(scores[m][up[0]].value)} up"
        + (f", {note(scores[m])}" if note else "")
        for m in models
    )
    return plot(title, f"{about}, with 95 % intervals. {told}", size, draw)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Axis limits in percent around values, with room for labels and never a span below 8."""
    low, high = 100 * min(values), 100 * max(values)
    room = max(0.2 * (high - low), (8 - (high - low)) / 2, 0.5)
    return max(low - room, -3.0), min(high + room, 103.0)


def _extent(label: str) -> tuple[float, float]:
    lines = label.split("\n")
    return _LETTER * max(len(line) for line in lines), 15 * len(lines)


def training(runs: Sequence[Run], models: Sequence[str]) -> tuple[Plot, ...]:
    """One plot a logged quantity with a line a run, in the colour of the model of that name."""
    names = dict.fromkeys(name for run in runs for name in run.curves)
    quantities = sorted(names, key=lambda name: not name.startswith("loss"))
    free = iter(k for k in range(1, 1000) if k >= len(models))
    places = {
        run.name: models.index(run.name) if run.name in models else next(free) for run in runs
    }
    plots = []
    for quantity in quantities:
        shown = [(run, run.curves[quantity]) for run in runs if quantity in run.curves]

        def draw(axes: Axes, theme: Theme, shown: Sequence = tuple(shown)) -> None:  # type: ignore[type-arg]
            for run, curve in shown:
                place = places[run.name]
                colour, dash = theme.model(place), DASHES[place % len(DASHES)]
                axes.plot(curve.steps, curve.values, color=colour, linewidth=0.8, alpha=0.3)
                axes.plot(
                    curve.steps,
                    curve.smooth,
                    color=colour,
                    linewidth=1.8,
                    linestyle=dash,
                    marker=MARKERS[place % len(MARKERS)] if len(curve.steps) == 1 else "",
                    label=short(run.name),
                )
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            axes.legend(
                loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=10, handlelength=2.6,
                borderaxespad=0.2,
            )  # fmt: skip

        told = "; ".join(
            f"{run.name} from {curve.smooth[0]:.4g} to {curve.smooth[-1]:.4g} "
            f"in {curve.steps[-1]} steps"
            for run, curve in shown
        )
        height = 230 + 16 * ((len(shown) + 1) // 2)
        plots.append(plot(quantity, f"{quantity} during training. {told}", (WIDTH, height), draw))
    return tuple(plots)
