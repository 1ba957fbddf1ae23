"""The trade-off of weight interpolation: compositionality against what tuning costs."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from compoclip.analysis.sweep import KEPT, Point, Rule, Sweep
from compoclip.evaluation.profile import COMPOSITION, RECOGNITION, RETRIEVAL
from compoclip.report.plotting import DASHES, MARKERS, Panel, Theme, write_figure
from compoclip.report.scatter import error_bar

_SIZE = (430, 360)
_SCOPES = {"all": "all weights", "image": "image tower only", "text": "text tower only"}
_TOLD = ("0.5",)  # shares written beside their points
_BESIDE = ((6, -11), (5, 5), (-22, 5))  # in points, by scope, so that lines that meet stay legible


def trajectory_plot(
    stem: Path, measured: Sweep, chosen: Point | None = None, rule: Rule | None = None
) -> tuple[Path, ...]:
    """Draw to STEM.png and STEM.svg: compositionality over zero-shot accuracy and over retrieval,
    a line a scope from the base's share 0 to 1, with 95 % intervals at the base and the tuned
    model, and what the rule picked. Nothing, and no paths, without two axes to plot."""
    panels = []
    for axis in (RECOGNITION, RETRIEVAL):
        if axis in measured.axes and COMPOSITION in measured.axes:

            def draw(axes: Axes, theme: Theme, axis: str = axis) -> None:
                _lines(axes, theme, measured, axis)
                if rule is not None and chosen is not None:
                    _choice(axes, theme, measured, axis, chosen, rule)
                axes.set_xlabel(f"{axis}, %")
                axes.set_ylabel(f"{COMPOSITION}, %")
                axes.legend(
                    loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9, handlelength=2.4
                )

            panels.append(Panel("", draw))
    return write_figure(stem, panels, _SIZE) if panels else ()


def _lines(axes: Axes, theme: Theme, measured: Sweep, axis: str) -> None:
    tuned = next(iter(measured.lines.values()))[-1]
    for k, (scope, line) in enumerate(measured.lines.items(), 1):
        across, up = zip(*(_place(point, axis) for point in line))
        axes.plot(
            across,
            up,
            color=theme.model(k),
            linestyle=DASHES[(k - 1) % len(DASHES)],
            marker=MARKERS[k % len(MARKERS)],
            markersize=4,
            linewidth=1.3,
            label=_SCOPES[scope],
            zorder=2,
        )
        for point in line[:-1]:
            if f"{point.mix.alpha:g}" in _TOLD:
                axes.annotate(
                    f"{point.mix.alpha:g}",
                    _place(point, axis),
                    textcoords="offset points",
                    xytext=_BESIDE[(k - 1) % len(_BESIDE)],
                    fontsize=9,
                    color=theme.model(k),
                )
    for point, name, marker in ((measured.base, "base", "o"), (tuned, "tuned", "D")):
        x, y = point.scores[axis], point.scores[COMPOSITION]
        axes.errorbar(
            100 * x.value,
            100 * y.value,
            xerr=error_bar(x),
            yerr=error_bar(y),
            fmt=marker,
            color=theme.ink,
            ecolor=theme.soft,
            elinewidth=0.9,
            markersize=8,
            label=f"{name}, 95 % interval",
            zorder=3,
        )


def _choice(
    axes: Axes, theme: Theme, measured: Sweep, axis: str, chosen: Point, rule: Rule
) -> None:
    axes.plot(
        *_place(chosen, axis),
        marker="o",
        markersize=14,
        markerfacecolor="none",
        markeredgecolor=theme.worse,
        markeredgewidth=1.6,
        linestyle="",
        label=f"picked: {chosen.mix.name}",
        zorder=4,
    )
    if axis == KEPT[rule.keep]:
        axes.axvline(
            100 * measured.base.scores[axis].value - rule.max_loss,
            color=theme.worse,
            linewidth=1,
            linestyle=(0, (4, 3)),
            label=f"base - {rule.max_loss:g}",
        )


def _place(point: Point, axis: str) -> tuple[float, float]:
    return 100 * point.scores[axis].value, 100 * point.scores[COMPOSITION].value
