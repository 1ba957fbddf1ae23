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
    """Counts for one rewrite. `unknown` results cannot be judged (scrambled, vague or ambiguous).

    foreign: of the false ones, those false through a word that names nothing in the world.
    """

    keeps_meaning: bool
    captions: int = 0
    true: int = 0
    false: int = 0
    unknown: int = 0
    foreign: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def made(self) -> int:
        """Rewrites made."""
        return self.true + self.false + self.unknown

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
            self.foreign += verdict.foreign
        if (verdict.truth is Truth.TRUE) != self.keeps_meaning:
            self.examples.append(example)


def judge_rewrites(
    captions: int, seed: int = 0, split: str = "val", names: Iterable[str] | None = None
) -> dict[str, Judged]:
    """What becomes of `captions` true captions of the world under each rewrite.

    names: rewrites of one caption or of two; by default all. Raises UsageError for unknown ones.
    """
    names = tuple(names if names is not None else (*rewrite_names(), CROSS_SWAP))
    pairs = {n: cross_swap for n in names if n == CROSS_SWAP}
    singles = {n: get_rewrite(n) for n in names if n not in pairs}
    counts = {n: Judged(n in singles and singles[n].keeps_meaning) for n in names}
    before: tuple[Scene, Caption] | None = None
    for key, scene, caption in _captions(captions, seed, split):
        for name, rewrite in singles.items():
            count = counts[name]
            count.captions += 1
            result = rewrite(caption, rng_for(seed, key, 0, name))
            if not isinstance(result, Refused):
                count.add(_ORACLE.verdict(result.text, scene), f"{caption.text} -> {result.text}")
        if before is not None and before[0] is not scene:
            for name, pair_rewrite in pairs.items():
                count = counts[name]
                count.captions += 1
                both = pair_rewrite(before[1], caption, rng_for(seed, key, 0, name))
                if not isinstance(both, Refused):
                    texts = tuple(made.text for made in both)
                    old = (before[1].text, caption.text)
                    count.add(_joint(texts, (before[0], scene)), f"{old} -> {texts}")
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
    foreign = any(v.foreign for verdicts in found for v in verdicts)
    if Truth.FALSE in held:
        return Verdict(Truth.FALSE, foreign=foreign)
    return Verdict(Truth.UNKNOWN if Truth.UNKNOWN in held else Truth.TRUE)
