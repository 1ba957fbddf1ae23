"""One JSON record per caption and rewrite, with everything needed to make it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compoclip import plugins
from compoclip.captions.lexicon import lexicon
from compoclip.captions.parser import parse, provenance
from compoclip.captions.tagger import DEFAULT_TAGGER, get_tagger, tagger_version
from compoclip.captions.types import Caption
from compoclip.printed import Table
from compoclip.rewrites.base import Refused, get_rewrite, rewrite_sources, rng_for

# --- What a run of rewrites achieved: coverage, refusal reasons, rules used, edit size. ---


def tally(*records: Mapping[str, Any]) -> dict[str, Any]:
    """Count records of one rewrite: texts made, edited words, rules, and refusals by reason.

    The counts of several records may be added up.
    """
    fine = [record for record in records if record["reason"] is None]
    edits = [edit for record in fine for edit in record["edits"]]
    return {
        "made": len(fine),
        "edited_words": sum(len(edit["before"].split()) for edit in edits),
        "rules": Counter(record["rule"] for record in fine),
        "refused": Counter(record["reason"] for record in records if record["reason"] is not None),
    }


def total(counts: Mapping[str, Any]) -> int:
    """Return the number of captions seen."""
    return int(counts["made"] + sum(counts["refused"].values()))


def coverage(counts: Mapping[str, Any]) -> float:
    """Return the share of captions that got a rewrite; 0 when none was seen."""
    return float(counts["made"] / (total(counts) or 1))


def mean_edit(counts: Mapping[str, Any]) -> float:
    """Return the mean number of edited words of a rewritten caption; 0 for none."""
    return float(counts["edited_words"] / (counts["made"] or 1))


def summary(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of one rewrite by name, most frequent reasons and rules first."""
    return {
        "captions": total(counts),
        "rewritten": counts["made"],
        "coverage": round(coverage(counts), 4),
        "mean_edited_words": round(mean_edit(counts), 2),
        "rules": dict(Counter(counts["rules"]).most_common()),
        "refused": dict(Counter(counts["refused"]).most_common()),
    }


def tally_table(tallies: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a row per rewrite, and below them the reasons of refusals with their counts."""
    rows = [
        [name, str(total(t)), str(t["made"]), f"{coverage(t):.1%}", f"{mean_edit(t):.2f}"]
        for name, t in tallies.items()
    ]
    refused = {name: Counter(t["refused"]).most_common() for name, t in tallies.items()}
    notes = [
        f"{name} refused: " + ", ".join(f"{reason} {n}" for reason, n in reasons)
        for name, reasons in refused.items()
        if reasons
    ]
    header = ["rewrite", "captions", "rewritten", "coverage", "words edited"]
    return Table(rows, header, notes=notes)


def text_of(rewritten: Sequence[Mapping[str, Any]], opening: str = "[", closing: str = "]") -> str:
    """Return the records of one caption as lines: the rewritten texts, or the reasons of refusals.

    Negatives come first. The marks are put around what was edited.
    """
    width = max(len(record["rewrite"]) for record in rewritten) + 2
    lines = ["caption".ljust(width) + rewritten[0]["caption"]]
    for kind, keeps in (("negative", False), ("positive", True)):
        group = [record for record in rewritten if record["keeps_meaning"] is keeps]
        lines += ["", f"{kind}s"] if group and len(rewritten) > len(group) else []
        for record in group:
            text, marked, end = record["text"], "", 0
            for edit in record["edits"]:
                start, stop = edit["new_start"], edit["new_end"]
                marked += f"{text[end:start]}{opening}{text[start:stop]}{closing}"
                end = stop
            outcome = f"refused: {record['reason']}"
            if text is not None:
                outcome = f"{marked}{text[end:]}  ({kind}, {record['rule']})"
            lines.append(record["rewrite"].ljust(width) + outcome)
    return "\n".join(lines)


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
        rewrites = [get_rewrite(name) for name in self.rewrites]
        sources = plugins.named_sources(rewrite_sources(self.rewrites))
        return {
            "rewrites": [f"{rewrite.name} {rewrite.version}" for rewrite in rewrites],
            **({"sources": sources} if sources else {}),
            "seed": self.seed,
            "epoch": self.epoch,
            **provenance(self.tagger),
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


def record(sample_id: str, caption: Caption, name: str, settings: Settings) -> dict[str, Any]:
    """Rewrite the caption with `name`: text, rule and edits, or the refusal reason."""
    rewrite = get_rewrite(name)
    result = rewrite(caption, rng_for(settings.seed, sample_id, settings.epoch, rewrite.name))
    outcome: dict[str, Any] = {"text": None, "rule": None, "edits": [], "reason": None}
    if isinstance(result, Refused):
        outcome["reason"] = result.reason
    else:
        outcome |= {"text": result.text, "rule": result.rule}
        for edit in result.edits:
            before = caption.text[edit.start : edit.end]
            after = result.text[edit.new_start : edit.new_end]
            outcome["edits"].append({**asdict(edit), "before": before, "after": after})
    return {
        "id": sample_id,
        "caption": caption.text,
        "rewrite": rewrite.name,
        "version": rewrite.version,
        "keeps_meaning": rewrite.keeps_meaning,
        **outcome,
        "seed": settings.seed,
        "epoch": settings.epoch,
        "tagger": tagger_version(settings.tagger),
        "lexicon": lexicon().name,
    }
