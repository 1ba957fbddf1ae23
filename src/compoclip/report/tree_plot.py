"""Tree scores by layer: models against each other, and each against trees that know nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from compoclip.analysis.tree_score import (
    BEST,
    GREEDY,
    HIGHEST,
    LEFT,
    RANDOM,
    RIGHT,
    Estimate,
    TreeScores,
)
from compoclip.report.plotting import DASHES, MARKERS, Panel, Theme, write_figure
from compoclip.report.scatter import ends
from compoclip.report.wording import short

_SIZE = (340, 300)
_NAMES = {
    BEST: "best",
    GREEDY: "greedy",
    LEFT: "left-branching",
    RIGHT: "right-branching",
    RANDOM: "random",
    HIGHEST: "highest sum",
}

Means = Mapping[str, Sequence[Estimate]]
"""Tree -> its mean score at each threshold, the mean over thresholds last."""


def tree_plot(stem: Path, scores: Sequence[TreeScores], means: Sequence[Means]) -> tuple[Path, ...]:
    """Draw to STEM.png and STEM.svg: the best tree's score of all models by threshold with 95 %
    intervals, when there are several; then each model beside the trees of other kinds."""

    def together(axes: Axes, theme: Theme) -> None:
        for k, (each, mean) in enumerate(zip(scores, means)):
            _line(axes, each.thresholds, mean[BEST], short(each.model), theme, k)
        _finish(axes, theme)

    panels = [Panel("Best trees", together)] if len(scores) > 1 else []
    for each, mean in zip(scores, means):

        def alone(axes: Axes, theme: Theme, each: TreeScores = each, mean: Means = mean) -> None:
            for k, (tree, name) in enumerate(_NAMES.items(), 1):
                if tree != HIGHEST or mean[HIGHEST] != mean[LEFT]:
                    _line(axes, each.thresholds, mean[tree], name, theme, k)
            _finish(axes, theme)

        panels.append(Panel(short(each.model), alone))
    return write_figure(stem, panels, _SIZE)


def _line(
    axes: Axes, across: Sequence[int], up: Sequence[Estimate], name: str, theme: Theme, k: int
) -> None:
    shown = up[: len(across)]
    colour = theme.model(k)
    axes.plot(
        across,
        [e.value for e in shown],
        color=colour,
        label=name,
        marker=MARKERS[k % len(MARKERS)],
        linestyle=DASHES[k % len(DASHES)],
        markersize=5,
    )
    low, high = zip(*map(ends, shown))
    axes.fill_between(across, low, high, color=colour, alpha=0.15, lw=0)


def _finish(axes: Axes, theme: Theme) -> None:
    axes.axhline(0, color=theme.soft, linewidth=1)
    axes.set_xlabel("threshold layer h: from it on a span sees itself only")
    axes.set_ylabel("tree score (0: blind splits)")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.legend(fontsize=9, handlelength=2.6)
