"""The world's Winoground, foils and strict pairs: minimal pairs of scenes, so that words alone tell
nothing.

In a pair each caption is true of its own picture and false of the other one, which differs in
one thing. The foils ask for each picture of a pair which of its two captions is true; every
caption is thus as often true as false. Winoground and the strict pairs ask for both pictures and
both captions at once, where a model that does not look at the pictures scores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from compoclip.errors import CompoclipError
from compoclip_world.export.part import Part, SuiteSpec
from compoclip_world.logic import Relation, nodes_of
from compoclip_world.oracle import is_false, is_true
from compoclip_world.pairs import WorldPair, pair
from compoclip_world.parser import parse
from compoclip_world.sampling import generator
from compoclip_world.scene import Scene

_FOLDER = "winoground/images"
_PATIENCE = 12


@dataclass(frozen=True)
class _Task:
    """Where the pairs of a sub-task come from.

    source: skill of `world.pairs`. skill: one of `benchmarks.skills`. about: what it asks.
    relations: of which the first caption must use one. wordings: in one of which "a star" and "a
    mug" become "there is no mug" and "there is no star"; {0}: the noun phrase, {1}: with its
    article.
    """

    source: str
    skill: str
    about: str
    relations: tuple[str, ...] = ()
    wordings: tuple[str, ...] = ()

    def choose(self, candidate: WorldPair) -> WorldPair | None:
        """Return the item that a pair of the source makes; None without one."""
        if self.relations:
            nodes = nodes_of(parse(candidate.caption_a))
            names = {node.name for node in nodes if isinstance(node, Relation)}
            return candidate if names & {*self.relations} else None
        if not self.wordings:
            return candidate
        a, b = candidate.scene_a, candidate.scene_b
        texts = candidate.caption_b, candidate.caption_a
        absent = [text.removeprefix("there is ") for text in texts]
        wording = generator("denied", *absent, *(t.x for t in a.things)).choice(self.wordings)
        first, second = (wording.format(text.split(" ", 1)[1], text) for text in absent)
        right, wrong = ((first, a), (second, b)), ((first, b), (second, a))
        held = all(is_true(*case) for case in right) and all(is_false(*case) for case in wrong)
        return replace(candidate, caption_a=first, caption_b=second) if held else None


TASKS: dict[str, _Task] = {
    "object": _Task("object", "object", "which kind of thing is there"),
    "negation": _Task(
        "object", "negation", 'what is not there ("no star")', wordings=("there is no {0}",)
    ),
    "negation_missing": _Task(
        "object",
        "negation",
        "the same in words that no rewrite has",
        wordings=("the {0} is missing",),
    ),
    "position": _Task("position", "spatial", "where in the picture a thing is"),
    "left_right": _Task("relation", "spatial", "left of or right of", ("left", "right")),
    "above_below": _Task("relation", "spatial", "above or below", ("above", "below")),
    "inside": _Task("inside", "relation", "inside or beside"),
    "front_behind": _Task("depth", "relation", "in front of or behind"),
    "bigger_smaller": _Task("comparison", "relation", "bigger or smaller than"),
    "role": _Task("swap-object", "role", "which of two things is left of (above) the other"),
    "count": _Task("count", "counting", "how many there are"),
    "bind_colour": _Task("swap-colour", "binding", "which of two things has which colour"),
    "bind_size": _Task("swap-size", "binding", "which of two things has which size"),
    "bind_pattern": _Task("swap-pattern", "binding", "which of two things has which pattern"),
}
"""Sub-task of the foils and tag of Winoground -> where its pairs come from."""

UNSEEN_WORDINGS = (
    "a picture of no {0}",
    "a picture with no {0}",
    "not {1}",
    "the picture does not have {1}",
    "the {0} is missing",
    "there is nothing that is {1}",
)
"""Negations that no rewrite of the package writes."""

STRICT_TASKS: dict[str, _Task] = {
    **{name: task for name, task in TASKS.items() if name != "negation_missing"},
    "negation_unseen": _Task(
        "object",
        "negation",
        "the same in six wordings that no rewrite has",
        wordings=UNSEEN_WORDINGS,
    ),
}
"""Sub-task of the strict pairs -> where its pairs come from."""

_EVERY_TASK = {**TASKS, **STRICT_TASKS}


def build(spec: SuiteSpec) -> list[Part]:
    """`winoground/examples.jsonl` and one file per sub-task in `foils/` and `strict/`, on the same
    images."""
    count = max(1, spec.items * 2 // 5)
    examples: list[dict[str, Any]] = []
    files: dict[str, Any] = {}
    strict: dict[str, Any] = {}
    images: dict[str, Scene] = {}
    drawn = draw_pairs(spec, count, [*_EVERY_TASK])
    for task, about in STRICT_TASKS.items():
        strict[f"strict/{task}.jsonl"] = [
            {
                "id": number,
                "image": f"{_FOLDER}/{about.source}_{index:05d}_a.png",
                "caption": item.caption_a,
                "negative_image": f"{_FOLDER}/{about.source}_{index:05d}_b.png",
                "negative_caption": item.caption_b,
                "subtask": task,
                "skill": about.skill,
            }
            for number, (index, item) in enumerate(drawn[task])
        ]
    for task, about in TASKS.items():
        rows = files[f"foils/{task}.jsonl"] = []
        for index, item in drawn[task]:
            names = [f"{about.source}_{index:05d}_{side}" for side in "ab"]
            texts = (item.caption_a, item.caption_b)
            for k, (name, scene) in enumerate(zip(names, (item.scene_a, item.scene_b))):
                path = f"{_FOLDER}/{name}.png"
                images[path] = scene
                rows.append(
                    {
                        "id": len(rows),
                        "image": path,
                        "caption": texts[k],
                        "negative_caption": texts[1 - k],
                        "subtask": task,
                        "skill": about.skill,
                    }
                )
            examples.append(
                {
                    "id": len(examples),
                    "image_0": names[0],
                    "image_1": names[1],
                    "caption_0": texts[0],
                    "caption_1": texts[1],
                    "tag": task,
                    "secondary_tag": about.skill,
                    "num_main_preds": 1,
                    "collapsed_tag": task,
                }
            )
    shown = {task: TASKS[task].about for task in TASKS}
    items = {task: len(files[f"foils/{task}.jsonl"]) for task in TASKS}
    return [
        Part(
            "winoground",
            "world-winoground",
            {"winoground/examples.jsonl": examples},
            images,
            {"winoground": len(examples)},
            {"winoground": "both pictures and both captions of every foil, by tag"},
        ),
        Part("foils", "world-foils", files, images, items, shown),
        Part(
            "foils",
            "world-strict",
            strict,
            images,
            dict.fromkeys(STRICT_TASKS, count),
            {task: about.about for task, about in STRICT_TASKS.items()},
            {"annotations": "strict"},
        ),
    ]


def draw_pairs(
    spec: SuiteSpec, count: int, tasks: Sequence[str], first: int = 0
) -> dict[str, list[tuple[int, WorldPair]]]:
    """`count` pairs of every task as (index, pair); tasks of one source share pairs.

    first: the index to start from; benchmarks that start millions apart share no scene. Raises
    CompoclipError when too few pairs come up.
    """
    chosen_pairs: dict[str, list[tuple[int, WorldPair]]] = {task: [] for task in tasks}
    for source in dict.fromkeys(_EVERY_TASK[task].source for task in tasks):
        names = [name for name in tasks if _EVERY_TASK[name].source == source]
        for index in range(first, first + _PATIENCE * count + _PATIENCE):
            waiting = [name for name in names if len(chosen_pairs[name]) < count]
            if not waiting:
                break
            candidate = pair(spec.config, spec.seed, index, source, spec.split)
            for name in waiting:
                if (chosen := _EVERY_TASK[name].choose(candidate)) is not None:
                    chosen_pairs[name].append((index, chosen))
        for name in names:
            if len(chosen_pairs[name]) < count:
                raise CompoclipError(
                    f"world: only {len(chosen_pairs[name])} of {count} pairs of {name} came up; "
                    "ask for fewer items or allow more kinds and colours"
                )
    return chosen_pairs
