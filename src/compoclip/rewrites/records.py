"""One JSON record per caption and rewrite, with everything needed to make it again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from compoclip.captions.lexicon import lexicon
from compoclip.captions.parse import PARSER_VERSION, parse
from compoclip.captions.tagger import DEFAULT_TAGGER, get_tagger, tagger_version
from compoclip.captions.types import Caption
from compoclip.rewrites.base import Edit, Refused, Rewritten, rng_for
from compoclip.rewrites.registry import get_rewrite
from compoclip.rewrites.statistics import Tally


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the rewrites of a caption: names, random seed and epoch, tagger."""

    rewrites: tuple[str, ...]
    seed: int = 0
    epoch: int = 0
    tagger: str = DEFAULT_TAGGER

    def provenance(self) -> dict[str, Any]:
        """Every input besides the captions, with versions: the same provenance, the same bytes."""
        return {
            "rewrites": [f"{name} {get_rewrite(name).version}" for name in self.rewrites],
            "seed": self.seed,
            "epoch": self.epoch,
            "tagger": tagger_version(self.tagger),
            "parser": PARSER_VERSION,
            "lexicon": lexicon_name(),
        }


@lru_cache(maxsize=1)
def lexicon_name() -> str:
    """Name of the lexicon that proposes replacements."""
    return lexicon().name


def records(items: Iterable[tuple[str, str]], settings: Settings) -> list[dict[str, Any]]:
    """The records of (id, caption) pairs: caption by caption, rewrites in the order of settings."""
    tagger = get_tagger(settings.tagger)
    return [
        record(sample_id, caption, name, settings)
        for sample_id, caption in ((i, parse(text, tagger)) for i, text in items)
        for name in settings.rewrites
    ]


def drawn(sample_id: str, caption: Caption, name: str, settings: Settings) -> Rewritten | Refused:
    """What the rewrite `name` makes of the caption of a sample, by seed and epoch."""
    rng = rng_for(settings.seed, sample_id, settings.epoch, name)
    return get_rewrite(name)(caption, rng)


def record(sample_id: str, caption: Caption, name: str, settings: Settings) -> dict[str, Any]:
    """What the rewrite `name` makes of the caption: text, rule and edits, or the refusal reason."""
    rewrite = get_rewrite(name)
    result = drawn(sample_id, caption, name, settings)
    made: dict[str, Any]
    if isinstance(result, Refused):
        made = {"text": None, "rule": None, "edits": [], "reason": result.reason}
    else:
        edits = [_edit(caption.text, result.text, edit) for edit in result.edits]
        made = {"text": result.text, "rule": result.rule, "edits": edits, "reason": None}
    return {
        "id": sample_id,
        "caption": caption.text,
        "rewrite": name,
        "version": rewrite.version,
        "keeps_meaning": rewrite.keeps_meaning,
        **made,
        "seed": settings.seed,
        "epoch": settings.epoch,
        "tagger": tagger_version(settings.tagger),
        "lexicon": lexicon_name(),
    }


def _edit(old: str, new: str, edit: Edit) -> dict[str, Any]:
    """The edited ranges with the characters before and after."""
    after = new[edit.new_start : edit.new_end]
    return {**asdict(edit), "before": old[edit.start : edit.end], "after": after}


def count(tallies: dict[str, Tally], made: dict[str, Any]) -> None:
    """Add one record to the tally of its rewrite."""
    tally = tallies[made["rewrite"]]
    if made["reason"] is not None:
        tally.add_refused(made["reason"])
    else:
        tally.add_made(made["rule"], sum(len(e["before"].split()) for e in made["edits"]))
