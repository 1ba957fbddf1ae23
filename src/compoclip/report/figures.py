"""The plots of the report, each with a text that says what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from compoclip.evaluation.compare import Difference
from compoclip.evaluation.profile import (
    BRITTLENESS,
    COMPOSITION,
    INVARIANCE,
    RECOGNITION,
    RETRIEVAL,
    SENSITIVITY,
)
from compoclip.report.findings import BETTER, WORSE, direction
from compoclip.report.plotting import DASHES, MARKERS, Plot, Theme, plot
from compoclip.report.scatter import WIDTH, Dot, front_of, scatter
from compoclip.report.study import Study
from compoclip.report.training import Run
from compoclip.report.wording import percent, points, short, signed_interval


def changes(study: Study) -> tuple[Plot, ...]:
    """One plot a model: the change of every skill against the base with its interval."""
    everything = [d for m in study.others for d in study.skills.differences[m].values()]
    reach = 100 * max([0.02, *(abs(v) for d in everything for v in _reaches(d))]) * 1.08
    plots = []
    for model in study.others:
        rows = list(study.skills.differences[model].values())

        def draw(axes: Axes, theme: Theme, rows: Sequence = tuple(rows)) -> None:  # type: ignore[type-arg]
            axes.axvline(0, color=theme.soft, linewidth=1)
            for y, d in enumerate(reversed(rows)):
                way = direction(d)
                colour = {BETTER: theme.better, WORSE: theme.worse}.get(way, theme.soft)
                marker = {BETTER: "^", WORSE: "v"}.get(way, "o")
                axes.plot([100 * v for v in _reaches(d)], [y, y], color=colour, linewidth=2)
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


def _reaches(d: Difference) -> tuple[float, float]:
    """The ends of the interval; where there is none, the difference itself."""
    return (d.difference, d.difference) if d.low is None or d.high is None else (d.low, d.high)


def invariance(study: Study) -> tuple[Plot, ...]:
    """One scatter a benchmark with hard positives: accuracy without and with the rewording."""
    return tuple(
        scatter(
            [
                Dot(
                    model,
                    place,
                    table.scores[model][SENSITIVITY],
                    table.scores[model][INVARIANCE],
                    f"brittle {percent(table.scores[model][BRITTLENESS].value)}",
                )
                for place, model in enumerate(study.models)
            ],
            ("foil below the caption, %", "foil below caption and rewording, %"),
            title=name,
            about=f"Sensitivity against invariance on {name}",
            diagonal=True,
        )
        for name, table in study.triples.items()
    )


@dataclass(frozen=True)
class Tradeoff:
    """Compositionality against another score. front: models that no other one beats on both."""

    plot: Plot
    name: str
    front: tuple[str, ...]


def tradeoff(study: Study) -> tuple[Tradeoff, ...]:
    """Compositionality against zero-shot accuracy, and against retrieval."""
    groups, scores = study.profile.groups, study.profile.scores
    if COMPOSITION not in groups:
        return ()
    found = []
    for name, label in ((RECOGNITION, "zero-shot accuracy"), (RETRIEVAL, "retrieval R@1")):
        if name in groups:
            dots = [
                Dot(model, place, scores[model][COMPOSITION], scores[model][name])
                for place, model in enumerate(study.models)
            ]
            drawn = scatter(
                dots,
                ("compositionality, %", f"{label}, %"),
                title=name,
                about=f"{name} against compositionality",
                front=True,
            )
            found.append(Tradeoff(drawn, name, tuple(front_of(dots))))
    return tuple(found)


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
