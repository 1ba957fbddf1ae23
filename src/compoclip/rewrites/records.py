"""One JSON record per caption and rewrite, with everything needed to make it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from compoclip import own
from compoclip.captions.lexicon import lexicon
from compoclip.captions.parser import PARSER_VERSION, parse
from compoclip.captions.tagger import DEFAULT_TAGGER, get_tagger, tagger_version
from compoclip.captions.types import Caption
from compoclip.rewrites.base import Refused, Rewritten, get_rewrite, rewrite_sources, rng_for

# --- What a run of rewrites achieved: coverage, refusal reasons, rules used, edit size. ---


@dataclass
class RewriteTally:
    """Counts for one rewrite: captions made and refused, by rule and reason, and edited words."""

    made: int = 0
    edited_words: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add_made(self, rule: str, words: int) -> None:
        """Count one rewritten caption, made by `rule`, with `words` caption words edited."""
        self.rules[rule] += 1  # first: of a damaged record nothing is counted
        self.made += 1
        self.edited_words += words

    @property
    def total(self) -> int:
        """Captions seen."""
        return self.made + self.reasons.total()

    @property
    def coverage(self) -> float:
        """Share of captions that got a rewrite; 0 when none was seen."""
        return self.made / self.total if self.total else 0.0

    @property
    def mean_edit(self) -> float:
        """Mean number of caption words inside edits, over the captions rewritten; 0 for none."""
        return self.edited_words / self.made if self.made else 0.0

    def as_counts(self) -> dict[str, Any]:
        """All counts by name; those of several tallies may be added up."""
        counts = {"made": self.made, "edited_words": self.edited_words}
        return {**counts, "rules": dict(self.rules), "refused": dict(self.reasons)}

    @classmethod
    def from_counts(cls, counts: Mapping[str, Any]) -> RewriteTally:
        """The tally with these counts."""
        rules, reasons = Counter(counts["rules"]), Counter(counts["refused"])
        return cls(counts["made"], counts["edited_words"], rules, reasons)

    def as_json(self) -> dict[str, Any]:
        """The numbers by name, most frequent reasons and rules first."""
        return {
            "captions": self.total,
            "rewritten": self.made,
            "coverage": round(self.coverage, 4),
            "mean_edited_words": round(self.mean_edit, 2),
            "rules": dict(self.rules.most_common()),
            "refused": dict(self.reasons.most_common()),
        }


def edited_words(caption: str, spans: Iterable[tuple[int, int]]) -> int:
    """Number of blank-separated words of the caption inside the character spans."""
    return sum(len(caption[start:end].split()) for start, end in spans)


def rows(tallies: Mapping[str, RewriteTally]) -> list[list[str]]:
    """Table rows (rewrite, captions, rewritten, coverage, words edited) for `console.table`."""
    return [
        [name, str(t.total), str(t.made), f"{t.coverage:.1%}", f"{t.mean_edit:.2f}"]
        for name, t in tallies.items()
    ]


HEADER = ("rewrite", "captions", "rewritten", "coverage", "words edited")


def reason_lines(tallies: Mapping[str, RewriteTally]) -> list[str]:
    """One line per rewrite that refused captions: the reasons with their counts."""
    return [
        f"{name} refused: " + ", ".join(f"{reason} {n}" for reason, n in t.reasons.most_common())
        for name, t in tallies.items()
        if t.reasons
    ]


# --- One JSON record per caption and rewrite, with everything needed to make it again. ---


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of rewrites: names, random seed and epoch, tagger."""

    rewrites: tuple[str, ...]
    seed: int = 0
    epoch: int = 0
    tagger: str = DEFAULT_TAGGER

    def provenance(self) -> dict[str, Any]:
        """Every input besides the captions, with versions: the same provenance, the same bytes."""
        made = [get_rewrite(name) for name in self.rewrites]
        sources = own.named_sources(rewrite_sources(self.rewrites))
        return {
            "rewrites": [f"{each.name} {each.version}" for each in made],
            **({"sources": sources} if sources else {}),
            "seed": self.seed,
            "epoch": self.epoch,
            "tagger": tagger_version(self.tagger),
            "parser": PARSER_VERSION,
            "lexicon": lexicon().name,
        }


def records(items: Iterable[tuple[str, str]], settings: Settings) -> list[dict[str, Any]]:
    """The records of (id, caption) pairs: caption by caption, rewrites in the order of settings."""
    tagger = get_tagger(settings.tagger)
    return [
        record(sample_id, caption, name, settings)
        for sample_id, caption in ((i, parse(text, tagger)) for i, text in items)
        for name in settings.rewrites
    ]


def drawn(sample_id: str, caption: Caption, name: str, settings: Settings) -> Rewritten | Refused:
    """Return the text that the rewrite `name` makes of a sample's caption, by seed and epoch."""
    rewrite = get_rewrite(name)
    return rewrite(caption, rng_for(settings.seed, sample_id, settings.epoch, rewrite.name))


def record(sample_id: str, caption: Caption, name: str, settings: Settings) -> dict[str, Any]:
    """Rewrite the caption with `name`: text, rule and edits, or the refusal reason."""
    rewrite, result = get_rewrite(name), drawn(sample_id, caption, name, settings)
    made: dict[str, Any] = {"text": None, "rule": None, "edits": [], "reason": None}
    if isinstance(result, Refused):
        made["reason"] = result.reason
    else:
        made |= {"text": result.text, "rule": result.rule}
        for edit in result.edits:
            before = caption.text[edit.start : edit.end]
            after = result.text[edit.new_start : edit.new_end]
            made["edits"].append({**asdict(edit), "before": before, "after": after})
    return {
        "id": sample_id,
        "caption": caption.text,
        "rewrite": rewrite.name,
        "version": rewrite.version,
        "keeps_meaning": rewrite.keeps_meaning,
        **made,
        "seed": settings.seed,
        "epoch": settings.epoch,
        "tagger": tagger_version(settings.tagger),
        "lexicon": lexicon().name,
    }


def count(tallies: dict[str, RewriteTally], made: dict[str, Any]) -> None:
    """Add one record to the tally of its rewrite."""
    tally = tallies[made["rewrite"]]
    if made["reason"] is not None:
        tally.reasons[made["reason"]] += 1
    else:
        tally.add_made(made["rule"], sum(len(e["before"].split()) for e in made["edits"]))
