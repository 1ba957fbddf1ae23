"""Sorts of texts other than rewrites: sub-graphs, bags, units, noun phrases, heads' targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from compoclip.captions.clip_text import token_key
from compoclip.data.caption_plan import Texts
from compoclip.data.drawing import NONE_APPLIES, Drawing, Drawn
from compoclip.data.written import NONE_WRITTEN, WrittenLists, read_bags, read_units
from compoclip.errors import UsageError
from compoclip.losses.contract import Role
from compoclip.rewrites.graph_edits import CATEGORIES as GRAPH_CATEGORIES
from compoclip.rewrites.graph_edits import load_vocabulary
from compoclip.rewrites.mosaic import POSITIVE as GRAPH_POSITIVE
from compoclip.rewrites.mosaic import sample_graph_texts
from compoclip.rewrites.units import (
    NO_PHRASE,
    NOUN_PHRASE,
    UNIT,
    UNIT_FOIL,
    UnitPart,
    draw_units,
    graph_parts,
    noun_phrases,
)
from compoclip.typed import Count, Natural, Within

BAG, BAG_NEGATIVE = "bag", "bag-negative"
TARGET = "target"  # is sampled with the other texts, but not encoded
OWN_CAPTIONS = "captions"  # instead of a file of bags
NO_BAG = "no-bag-for-the-sample"
_BOTH = (Role.POSITIVE, Role.NEGATIVE)


# --- Sub-graphs of captions (MosaiCLIP). ---


@dataclass(frozen=True)
class Stage:
    """A stage of a curriculum of graph texts.

    Args:
        start: First epoch of the stage, counted from 0.
        positives: Most positive texts per caption.
        negatives: Most negative texts per caption.
    """

    start: int
    positives: int
    negatives: int


@dataclass(frozen=True)
class GraphPlan(Texts):
    """Positive and negative sub-graph texts of each caption (MosaiCLIP).

    Args:
        weights: Of the categories object, relation, attribute.
        stages: The curriculum, in order of `start`, the first at 0.
        vocabulary: File with the words of replacements; "" is the built-in.
        filtered: Whether texts pass the validity rules.
    """

    weights: tuple[float, float, float] = (0.08, 0.46, 0.46)
    stages: tuple[Stage, ...] = (Stage(0, 3, 6),)
    vocabulary: str = ""
    filtered: bool = True

    name: ClassVar[str] = "graph"
    label: ClassVar[str] = "graph texts"
    roles: ClassVar[tuple[Role, ...]] = _BOTH
    from_file: ClassVar = ("vocabulary", load_vocabulary)
    kinds = (GRAPH_POSITIVE, *GRAPH_CATEGORIES)

    def __post_init__(self) -> None:
        super().__post_init__()
        weights, starts = self.weights, [stage.start for stage in self.stages]
        rising = starts[:1] == [0] and starts == sorted(set(starts))
        if len(weights) != len(GRAPH_CATEGORIES) or min(weights) < 0 or not sum(weights) > 0:
            raise UsageError(
                f"graph weights must be three numbers of at least 0, and not all 0, not {weights}"
            )
        if not rising:
            raise UsageError(f"curriculum stages must start at epoch 0 and rise, not {starts}")
        if any(min(stage.positives, stage.negatives) < 0 for stage in self.stages):
            raise UsageError("a curriculum stage cannot have fewer than 0 texts")

    @classmethod
    def published(
        cls,
        objects: float,
        second_stage: int,
        vocabulary: str = "",
        filtered: bool = True,
        positives: int = 3,
        negatives: int = 6,
    ) -> GraphPlan:
        """Return the plan with weight `objects` for objects, the rest shared by the other two.

        At most one positive and one negative before epoch `second_stage`, and at most `positives`
        and `negatives` from it on.
        """
        if not 0 <= objects <= 1:
            raise UsageError(f"the share of object negatives must be 0 to 1, not {objects}")
        other = (1 - objects) / 2
        first = (Stage(0, min(1, positives), min(1, negatives)),) if second_stage > 0 else ()
        stages = (*first, Stage(max(0, second_stage), positives, negatives))
        return cls((objects, other, other), stages, vocabulary, filtered)

    def at(self, epoch: int) -> Stage:
        """Return the stage of an epoch."""
        return [stage for stage in self.stages if stage.start <= epoch][-1]

    def draw_texts(self, drawing: Drawing, loaded: Any) -> None:
        """Add sub-graph texts, positives first, up to the numbers of the epoch's stage."""
        stage = self.at(drawing.epoch)
        sampled = sample_graph_texts(
            drawing.parse(drawing.caption),
            drawing.rng("graph"),
            weights=self.weights,
            positives=stage.positives,
            negatives=stage.negatives,
            vocabulary=loaded,
            graph_filter="valid" if self.filtered else "none",
        )
        drawing.counts.refused.update(sampled.refused)
        for text in (*sampled.positives, *(sampled.negatives if drawing.negatives else ())):
            drawing.add(Drawn.of(text), text.rewrite)


# --- Bags of sentences that describe an image in detail (DAC). ---


@dataclass(frozen=True)
class BagPlan(Texts):
    """Sentences of each image from a file, and a negative of each (DAC).

    Args:
        file: JSON lines {"id", "sentences"} and optionally "negatives", one per sentence or null;
            or "captions": the bag of an image is its other captions.
        size: Sentences per image in every epoch.
        negatives: Rewrites for sentences without a negative in the file: a random applicable one
            per sentence.
        draw: "replacement" samples `size` texts with replacement from the caption and the bag;
            "distinct" samples at most `size` different sentences of the bag.
    """

    file: str
    size: Count = 10
    negatives: tuple[str, ...] = ("tsvlc-rb",)
    draw: Literal["replacement", "distinct"] = "replacement"

    name: ClassVar[str] = "bags"
    label: ClassVar[str] = "bags"
    roles: ClassVar[tuple[Role, ...]] = _BOTH
    kinds = (BAG, BAG_NEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.negatives:
            raise UsageError("a bag needs a rewrite that makes its negatives")

    @property
    def rewrites(self) -> tuple[str, ...]:
        """Return the rewrites that make negatives."""
        return self.negatives

    @property
    def files(self) -> tuple[str, ...]:
        """Return the file of bags."""
        return () if self.file == OWN_CAPTIONS else (self.file,)

    def read(self) -> Any:
        """Return the bags of the file; None for other captions."""
        return None if self.file == OWN_CAPTIONS else read_bags(Path(self.file))

    def draw_texts(self, drawing: Drawing, loaded: WrittenLists | None) -> None:
        """Add the sentences of the bag, each with its negative; the caption without a bag."""
        sentences: list[tuple[str, str | None]] = []
        if loaded is None:
            sentences = [(text, None) for text in drawing.other_captions()]
        else:
            id = drawing.sample.id
            sentences = [*zip(*(loaded.find(id) or loaded.find(id.rpartition("#")[0]) or ((), ())))]
        if not sentences:
            drawing.refuse(BAG, NO_BAG)
        rng = drawing.rng(BAG)
        if self.draw == "replacement":
            pool = [*sentences, (drawing.caption, None)]
            for place, (text, negative) in enumerate(rng.choices(pool, k=self.size)):
                # A repeated sentence has another negative.
                self._add(drawing, text, negative, f"{place}\x1f{text}", again=True)
            return
        if not sentences:
            drawing.texts.append(Drawn(drawing.caption, Role.POSITIVE, BAG))
        for i in sorted(rng.sample(range(len(sentences)), min(self.size, len(sentences)))):
            self._add(drawing, *sentences[i], sentences[i][0])

    def _add(
        self, drawing: Drawing, text: str, negative: str | None, key: str, again: bool = False
    ) -> None:
        """Add a sentence with its negative: the file's, or one by a rewrite that applies."""
        taken = drawing.add(Drawn(text, Role.POSITIVE), BAG, again=again)
        if not (taken and drawing.negatives):
            return
        if negative is not None:
            drawing.add(Drawn(negative, Role.NEGATIVE), BAG_NEGATIVE, again=again)
            return
        rng = drawing.rng(f"{BAG_NEGATIVE}\x1f{key}")
        names = self.negatives
        for name in rng.sample(names, len(names)) if len(names) > 1 else names:
            rewritten = drawing.rewrite(name, text, rng, drawing.negatives)
            if drawing.add(rewritten, BAG_NEGATIVE, f"{BAG_NEGATIVE} ({name})", again):
                drawing.counts.count(BAG_NEGATIVE)
                return
        drawing.refuse(BAG_NEGATIVE, NONE_APPLIES)


# --- Units of captions and noun phrases. ---


@dataclass(frozen=True)
class UnitPlan(Texts):
    """Units of each caption, entities and relations, each with a foil (CS-CLIP).

    The texts of slot k are of the kinds "unit-k" and "unit-foil-k", counted from 1.

    Args:
        slots: Most units per caption.
        relation_share: How often a slot tries the caption's relations first; else it takes an
            entity.
        pair_share: How often an entity comes with another one ("A and B").
        file: Units and foils in the format of CS-CLIP's training data, by caption; "" takes them
            from the scene graph.
    """

    slots: Count = 2
    relation_share: Annotated[float, Within(0, 1)] = 1.0
    pair_share: Annotated[float, Within(0, 1)] = 0.5
    file: str = ""

    name: ClassVar[str] = "units"
    label: ClassVar[str] = "units"
    roles: ClassVar[tuple[Role, ...]] = _BOTH
    from_file: ClassVar = ("file", read_units)

    @property
    def units(self) -> tuple[str, ...]:
        """Return the kind of the unit in each slot."""
        return tuple(f"{UNIT}-{slot}" for slot in range(1, self.slots + 1))

    @property
    def foils(self) -> tuple[str, ...]:
        """Return the kind of the foil in each slot."""
        return tuple(f"{UNIT_FOIL}-{slot}" for slot in range(1, self.slots + 1))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of unit and foil, slot by slot."""
        return tuple(kind for pair in zip(self.units, self.foils) for kind in pair)

    @property
    def needs_parsing(self) -> bool:
        """Return whether units come from scene graphs, not from a file."""
        return not self.file

    def draw_texts(self, drawing: Drawing, loaded: WrittenLists | None) -> None:
        """Add units of the caption, each with its foil, in slots."""
        parts: tuple[Sequence[UnitPart], Sequence[UnitPart]] | None
        caption = drawing.caption
        parts = loaded.find(caption) if loaded else graph_parts(drawing.parse(caption))
        if parts is None:
            drawing.refuse(UNIT, NONE_WRITTEN)
            return
        entities, relations = parts
        draw = draw_units(
            entities,
            relations,
            drawing.rng(UNIT),
            slots=self.slots,
            relation_share=self.relation_share,
            pair_share=self.pair_share,
            taken=frozenset(drawing.taken),
            named=frozenset(w for text in drawing.sample.captions for w in token_key(text)),
        )
        drawing.counts.refused.update({(UNIT, reason): n for reason, n in draw.refused.items()})
        for kind, foil_kind, (unit, foil) in zip(self.units, self.foils, draw.units):
            if drawing.add(Drawn.of(unit), kind, UNIT) and drawing.negatives:
                drawing.add(Drawn.of(foil), foil_kind, UNIT_FOIL)


@dataclass(frozen=True)
class PhrasePlan(Texts):
    """Noun phrases of the caption, or the caption if it has none (C2LIP).

    Args:
        most: Most phrases per caption; 0 turns them off.
    """

    most: Natural = 0

    name: ClassVar[str] = "phrases"
    label: ClassVar[str] = "noun phrases"
    roles: ClassVar[tuple[Role, ...]] = (Role.POSITIVE,)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the one kind, or () if phrases are off."""
        return (NOUN_PHRASE,) if self.most else ()

    @property
    def needs_parsing(self) -> bool:
        """Return whether phrases are on."""
        return self.most > 0

    def draw_texts(self, drawing: Drawing, loaded: Any) -> None:
        """Add noun phrases in the order of the caption."""
        if not self.most:
            return
        phrases = noun_phrases(drawing.parse(drawing.caption))
        rng = drawing.rng(NOUN_PHRASE)
        chosen = sorted(rng.sample(range(len(phrases)), min(self.most, len(phrases))))
        texts = [Drawn(phrases[i], Role.POSITIVE) for i in chosen]
        if sum(drawing.add(text, NOUN_PHRASE) for text in texts) == 0:
            drawing.refuse(NOUN_PHRASE, NO_PHRASE)
            drawing.texts.append(Drawn(drawing.caption, Role.POSITIVE, NOUN_PHRASE))


# --- Targets of heads that write captions. ---


@dataclass(frozen=True)
class TargetPlan(Texts):
    """A caption for a head to write about the image; no tower encodes it (READ-CLIP).

    Args:
        of: "other" is another caption of the image if there is one, "any" any of them, "" none.
    """

    of: Literal["", "other", "any"] = ""

    name: ClassVar[str] = "target"
    needs_parsing = False

    def draw_texts(self, drawing: Drawing, loaded: Any) -> None:
        """Add the target, sampled among the allowed captions."""
        if not self.of:
            return
        captions = drawing.sample.captions
        if self.of == "other":
            captions = tuple(drawing.other_captions()) or (drawing.caption,)
        text = drawing.rng(TARGET).choice(captions)
        drawing.texts.append(Drawn(text, Role.POSITIVE, TARGET))


BY_VALUE = {sort.name: sort for sort in (PhrasePlan(), TargetPlan())}
"""Sorts that setting a value adds to a method without them."""
