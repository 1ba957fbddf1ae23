"""How often rewrites fail by the oracle: negatives that stay true, positives that become false.

Every caption of the world is true of its scene, so the oracle's verdict on a rewrite says whether
it does what it promises. A rewrite of two captions is a statement about both scenes together: it
stays true when each text holds in one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from compoclip.captions.parser import parse
from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, get_rewrite, rewrite_names, rng_for
from compoclip.rewrites.cross_swap import NAME as CROSS_SWAP
from compoclip.rewrites.cross_swap import cross_swap
from compoclip_world.captions import captions_for
from compoclip_world.oracle import Oracle, Truth, Verdict
from compoclip_world.sampling import scene_for
from compoclip_world.scene import Scene, WorldConfig

PER_SCENE = 4
_ORACLE = Oracle()


@dataclass
class Judged:
    """Counts for one rewrite; `unknown` results (scrambled, vague, ambiguous) cannot be judged."""

    keeps_meaning: bool
    captions: int = 0
    true: int = 0
    false: int = 0
    unknown: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def judged(self) -> int:
        """Rewrites found true or false."""
        return self.true + self.false

    @property
    def wrong(self) -> int:
        """Negatives still true, or positives become false."""
        return self.false if self.keeps_meaning else self.true

    @property
    def rate(self) -> float:
        """Share of the judged rewrites that are wrong; 0 when none was judged."""
        return self.wrong / self.judged if self.judged else 0.0

    def add(self, verdict: Verdict, example: str) -> None:
        """Count one rewrite with its verdict; the example is kept when it is wrong."""
        if verdict.truth is Truth.UNKNOWN:
            self.unknown += 1
            return
        if verdict.truth is Truth.TRUE:
            self.true += 1
        else:
            self.false += 1
        if (verdict.truth is Truth.TRUE) != self.keeps_meaning:
            self.examples.append(example)


def judge_rewrites(captions: int, seed: int = 0, split: str = "val") -> dict[str, Judged]:
    """Return the counts of every rewrite, tried on so many true captions of the world."""
    rewrites = {name: get_rewrite(name) for name in rewrite_names()}
    counts = {name: Judged(rewrite.keeps_meaning) for name, rewrite in rewrites.items()}
    pairs = counts[CROSS_SWAP] = Judged(keeps_meaning=False)
    before: tuple[Scene, Caption] | None = None
    for key, scene, caption in _captions(captions, seed, split):
        for name, rewrite in rewrites.items():
            counts[name].captions += 1
            result = rewrite(caption, rng_for(seed, key, 0, name))
            if not isinstance(result, Refused):
                verdict = _ORACLE.verdict(result.text, scene)
                counts[name].add(verdict, f"{caption.text} -> {result.text}")
        if before is not None and before[0] is not scene:
            pairs.captions += 1
            both = cross_swap(before[1], caption, rng_for(seed, key, 0, CROSS_SWAP))
            if not isinstance(both, Refused):
                texts = tuple(made.text for made in both)
                old = (before[1].text, caption.text)
                pairs.add(_joint(texts, (before[0], scene)), f"{old} -> {texts}")
        before = scene, caption
    return counts


def _captions(number: int, seed: int, split: str) -> Iterator[tuple[str, Scene, Caption]]:
    """(key, scene, parsed caption); a scene's captions are `PER_SCENE` rounds apart, so that each
    caption follows one of another scene.
    """
    config = WorldConfig()
    scenes = [scene_for(config, seed, split, i) for i in range(-(-number // PER_SCENE))]
    texts = [captions_for(s, config, seed, i, PER_SCENE) for i, s in enumerate(scenes)]
    order = [(i, place) for place in range(PER_SCENE) for i in range(len(scenes))]
    for i, place in order[:number]:
        if place < len(texts[i]):
            text = texts[i][place].text
            yield f"{i}/{text}", scenes[i], parse(text)


def _joint(texts: Iterable[str], scenes: tuple[Scene, Scene]) -> Verdict:
    """Whether each text holds in one of the scenes."""
    found = [[_ORACLE.verdict(text, scene) for scene in scenes] for text in texts]
    held = [
        Truth.TRUE
        if any(v.truth is Truth.TRUE for v in verdicts)
        else Truth.FALSE
        if all(v.truth is Truth.FALSE for v in verdicts)
        else Truth.UNKNOWN
        for verdicts in found
    ]
    if Truth.FALSE in held:
        return Verdict(Truth.FALSE)
    return Verdict(Truth.UNKNOWN if Truth.UNKNOWN in held else Truth.TRUE)
