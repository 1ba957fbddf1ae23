"""The trade-off of weight interpolation: compositionality against zero-shot and retrieval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from compoclip.analysis.interpolation import KEPT, Point, Rule, Sweep
from compoclip.analysis.trees import BEST, GREEDY, HIGHEST, LEFT, RANDOM, RIGHT, TreeScores
from compoclip.evaluation.groups import COMPOSITION, RECOGNITION, RETRIEVAL
from compoclip.evaluation.statistics import Estimate
from compoclip.report.plotting import Theme, ends, error_bar, write_figure
from compoclip.report.wording import short

_SIZE = (430, 360)
_SCOPES = {"all": "all weights", "image": "image tower only", "text": "text tower only"}
_BESIDE = ((6, -11), (5, 5), (-22, 5))  # in points, by scope, so that lines that meet stay legible


def trajectory_plot(
    stem: Path, measured: Sweep, chosen: Point | None = None, rule: Rule | None = None
) -> tuple[Path, ...]:
    """Draw compositionality over zero-shot accuracy and over retrieval, in two panels.

    There is one line per scope from the base to the tuned model, with 95 % intervals at both ends.

    Args:
        stem: path without suffix of the PNG and the SVG.
        measured: the sweep.
        chosen: the point to mark, chosen by `rule`.
        rule: the rule.

    Returns:
        The paths written; () without two axes to plot.
    """

    def draw(axes: Axes, theme: Theme, axis: str) -> None:
        def place(point: Point) -> tuple[float, float]:
            return 100 * point.scores[axis].value, 100 * point.scores[COMPOSITION].value

        for k, (scope, line) in enumerate(measured.lines.items()):
            across, up = zip(*map(place, line))
            look = {**theme.line(k + 1), "linestyle": theme.line(k)["linestyle"]}
            look |= {"markersize": 4, "linewidth": 1.3, "zorder": 2, "label": _SCOPES[scope]}
            axes.plot(across, up, **look)
            for point in line[:-1]:
                if point.mix.alpha == 0.5:
                    style = {"fontsize": 9, "color": look["color"], "textcoords": "offset points"}
                    axes.annotate("0.5", place(point), xytext=_BESIDE[k % len(_BESIDE)], **style)
        tuned = next(iter(measured.lines.values()))[-1]
        for point, name, marker in ((measured.base, "base", "o"), (tuned, "tuned", "D")):
            x, y = error_bar(point.scores[axis]), error_bar(point.scores[COMPOSITION])
            style = {"fmt": marker, "color": theme.ink, "ecolor": theme.soft, "elinewidth": 0.9}
            style |= {"markersize": 8, "label": f"{name}, 95 % interval", "zorder": 3}
            axes.errorbar(*place(point), y, x, **style)
        if rule is not None and chosen is not None:
            style = {"marker": "o", "markersize": 14, "markerfacecolor": "none", "linestyle": ""}
            style |= {"markeredgecolor": theme.worse, "markeredgewidth": 1.6, "zorder": 4}
            axes.plot(*place(chosen), label=f"picked: {chosen.mix.name}", **style)
            if axis == KEPT[rule.keep]:
                floor = 100 * measured.base.scores[axis].value - rule.max_loss
                style = {"color": theme.worse, "linewidth": 1, "linestyle": (0, (4, 3))}
                axes.axvline(floor, label=f"base - {rule.max_loss:g}", **style)
        axes.set(xlabel=f"{axis}, %", ylabel=f"{COMPOSITION}, %")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9, handlelength=2.4)

    panels = [
        ("", partial(draw, axis=axis))
        for axis in (RECOGNITION, RETRIEVAL)
        if {axis, COMPOSITION} <= set(measured.axes)
    ]
    return write_figure(stem, panels, _SIZE) if panels else ()


# --- Tree scores by layer: models against each other, and each against trees that know nothing. ---

_TREE_PLOT_SIZE = (340, 300)
_DRAWN = (BEST, GREEDY, LEFT, RIGHT, RANDOM, HIGHEST)

Curve = Sequence[Estimate]
Means = Mapping[str, Curve]
"""Tree -> its mean score at each threshold, the mean over thresholds last."""


def tree_plot(stem: Path, scores: Sequence[TreeScores], means: Sequence[Means]) -> tuple[Path, ...]:
    """Draw the best tree's score of all models by threshold, then all trees of each model.

    Args:
        stem: path without suffix of the PNG and the SVG.
        scores: of each model.
        means: of each model, tree -> its estimates by threshold, with 95 % intervals.
    """

    def draw(axes: Axes, theme: Theme, lines: Sequence[tuple[int, TreeScores, str, Curve]]) -> None:
        for k, model, name, curve in lines:
            points, look = curve[: len(model.thresholds)], theme.line(k)
            values = [e.value for e in points]
            axes.plot(model.thresholds, values, label=name, markersize=5, **look)
            low, high = zip(*map(ends, points))
            axes.fill_between(model.thresholds, low, high, color=look["color"], alpha=0.15, lw=0)
        axes.axhline(0, color=theme.soft, linewidth=1)
        axes.set_xlabel("threshold layer h: from it on a span sees itself only")
        axes.set_ylabel("tree score (0: blind splits)")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axes.legend(fontsize=9, handlelength=2.6)

    measured = list(zip(scores, means))
    best = [(k, s, short(s.model), mean[BEST]) for k, (s, mean) in enumerate(measured)]
    panels = [("Best trees", partial(draw, lines=best))] if len(scores) > 1 else []
    for model, mean in measured:
        lines = [
            (k, model, f"{tree}-branching" if tree in (LEFT, RIGHT) else tree, mean[tree])
            for k, tree in enumerate(_DRAWN, 1)
            if tree != HIGHEST or mean[HIGHEST] != mean[LEFT]
        ]
        panels.append((short(model.model), partial(draw, lines=lines)))
    return write_figure(stem, panels, _TREE_PLOT_SIZE)
