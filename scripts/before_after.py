"""Draw items that a tuned model gets right and its base does not: image, caption, foil, scores.

python scripts/before_after.py demo-out/results/base demo-out/results/negclip world-foils \
    bind_colour docs/before-after.png

Of the items that changed from wrong to right it takes those with the smallest hash, and says beside
the picture how many there are, how many changed the other way, and what chance is.
"""

from __future__ import annotations

import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from PIL import Image

from compoclip.evaluation.results import load_items, load_results


def items(
    folder: Path, benchmark: str, subtask: str
) -> tuple[str, float, dict[str, dict[str, Any]]]:
    """Return model name, chance level and rows by item of a sub-task.

    Args:
        folder: Results of one model.
        benchmark: Its name in the results.
        subtask: The sub-task.

    Raises:
        SystemExit: When the folder has no such results.
    """
    found = [each for each in load_results(folder) if each.benchmark == benchmark]
    if not found:
        raise SystemExit(f"{folder}: no results of {benchmark}")
    rows = [row for row in load_items(found[0]).to_pylist() if row["subtask"] == subtask]
    chance = found[0].main(subtask).chance
    return found[0].model, chance or 0.0, {row["item"]: row for row in rows}


def draw(before: Path, after: Path, benchmark: str, subtask: str, out: Path, count: int = 3) -> str:
    """Write the picture and return the sentence that belongs below it.

    Args:
        before: Results of the base.
        after: Results of the tuned model.
        benchmark: Its name in both.
        subtask: A sub-task whose items have one image, a caption and a foil.
        out: The picture.
        count: Number of items.
    """
    base, chance, old = items(before, benchmark, subtask)
    tuned, _, new = items(after, benchmark, subtask)
    right = {name: (old[name]["used.accuracy"], new[name]["used.accuracy"]) for name in old}
    gained = [name for name, pair in right.items() if pair == (0.0, 1.0)]
    lost = sum(pair == (1.0, 0.0) for pair in right.values())
    gained.sort(key=lambda name: blake2b(name.encode()).digest())
    shown = gained[:count]
    reach = 1.1 * max(abs(_margin(rows[name])) for rows in (old, new) for name in shown)
    figure, axes = plt.subplots(2, count, figsize=(4.2 * count, 5), height_ratios=(3, 1))
    for column, name in enumerate(shown):
        image, bars = axes[0][column], axes[1][column]
        image.imshow(Image.open(old[name]["images"][0]), interpolation="nearest")
        image.set_axis_off()
        caption, foil = (
            old[name]["texts"][k] for k in (old[name]["truth"], 1 - old[name]["truth"])
        )
        image.set_title(f"{caption}\nnot: {foil}", fontsize=10)
        margins = [_margin(rows[name]) for rows in (old, new)]
        bars.barh([1, 0], margins, color=["#999999", "#0072B2"])
        bars.set_yticks([1, 0], [base, tuned])
        bars.axvline(0, color="black", linewidth=0.8)
        bars.spines[["top", "right", "left"]].set_visible(False)
        bars.set_xlim(-reach, reach)
        bars.set_xlabel("score of the caption minus score of the foil", fontsize=8)
        bars.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    shares = [sum(pair[k] for pair in right.values()) / len(right) for k in (0, 1)]
    return (
        f"{len(right)} items of {benchmark}, {subtask}: {base} {shares[0]:.0%} right, "
        f"{tuned} {shares[1]:.0%}, chance {chance:.0%}. {len(gained)} changed from wrong to right, "
        f"{lost} the other way; shown are {count} of the first, by a hash."
    )


def _margin(row: dict[str, Any]) -> float:
    return float(row["scores"][row["truth"]] - row["scores"][1 - row["truth"]])


if __name__ == "__main__":
    one, two, name, part, place = sys.argv[1:]
    print(draw(Path(one), Path(two), name, part, Path(place)))
