"""Drawing the texts of a sample in an epoch, as a `CaptionPlan` says; parsing them beforehand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from compoclip.captions.chunks import pre_caption
from compoclip.captions.store import ParseStore
from compoclip.captions.types import Caption, is_cut
from compoclip.console import track
from compoclip.data.caption_plan import (
    BAG,
    BAG_NEGATIVE,
    GIVEN,
    GIVEN_POSITIVE,
    OF_DATA,
    OTHER_CAPTION,
    OWN_CAPTIONS,
    TARGET,
    WRITTEN,
    WRITTEN_POSITIVE,
    Bags,
    BagSentence,
    CaptionPlan,
    MaskPlan,
    OneOf,
    UnitPlan,
    WrittenTexts,
)
from compoclip.data.drawn import Drawn, PlanCounts
from compoclip.data.masks import ConceptFile, draw_mask
from compoclip.data.sources import Sample, Source
from compoclip.data.written_units import WrittenUnits
from compoclip.files import cache_folder
from compoclip.losses.contract import Role
from compoclip.rewrites.absent_object import ABSENT_OBJECT
from compoclip.rewrites.base import (
    Rewrite,
    Rewritten,
    fits_context,
    get_rewrite,
    kind_named,
    rng_for,
    token_key,
)
from compoclip.rewrites.graph_edits import load_vocabulary
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
from compoclip.rewrites.written import form_objection, positive_objection
from compoclip.workers import available_cores

# --- Which texts accompany a sample in an epoch, drawn as a `CaptionPlan` says. ---

# Reasons for leaving a text out, besides a rewrite's own.
NONE_GIVEN = "none-given"
EQUALS_CAPTION = "equals-a-caption-of-the-sample"
EQUALS_OTHER = "equals-another-text-of-the-sample"
TOO_LONG = "too-long"
NOT_CHOSEN = "caption-without-negatives"
NONE_APPLIES = "none-applies"
NO_BAG = "no-bag-for-the-sample"
NONE_WRITTEN = "none-written"
NO_OTHER_CAPTION = "no-other-caption"
NO_CONCEPT = "nothing-to-hide"
MASK = "mask"  # what masked captions are counted as


class ParsedCaptions(Protocol):
    """Parsed captions by text, as prepared before training."""

    def __getitem__(self, text: str) -> Caption: ...


class TextPlan:
    """Draws the texts of a sample; the same for the same seed, sample id and epoch, anywhere.

    Args:
        plan: What to draw; names alone stand for a plan with these rewrites.
        seed: Of all draws.
        parsed: Parsed captions; only a plan of negatives that came with the data needs none.
        resolve: Finds a rewrite by name (raising for an unknown one), again in each process, so
            that a plan can be sent to workers whatever its rewrites hold.
    """

    def __init__(
        self,
        plan: CaptionPlan | Sequence[str | OneOf] = (),
        *,
        seed: int = 0,
        parsed: ParsedCaptions | None = None,
        resolve: Callable[[str], Rewrite] = get_rewrite,
    ) -> None:
        self.plan = plan if isinstance(plan, CaptionPlan) else CaptionPlan(tuple(plan))
        self._seed = seed
        self._parsed = parsed
        self._resolve = resolve
        self._rewrites = self._find()
        if self.plan.needs_parsing and parsed is None:
            raise ValueError("a plan with rewrites needs parsed captions")
        bags, graph = self.plan.bags, self.plan.graph
        named = bags is not None and bags.file != OWN_CAPTIONS
        self.bags = Bags(Path(bags.file)) if bags is not None and named else None
        written = bool(self.plan.written) or {*self.plan.all_rewrites}.intersection(WRITTEN)
        self.written = WrittenTexts(Path(self.plan.written)) if written else None
        units = self.plan.units
        self._units = WrittenUnits(Path(units.file)) if units and units.file else None
        masks = self.plan.masks
        self._concepts = ConceptFile(Path(masks.file)) if masks and masks.file else None
        words = graph.vocabulary if graph is not None else None
        self._vocabulary = load_vocabulary(Path(words)) if words else None

    def draw(
        self, sample: Sample, epoch: int, key: str | None = None
    ) -> tuple[list[Drawn], PlanCounts]:
        """The caption first, then rewrites in the order of the plan, graph texts, bag, units, noun
        phrases.

        A text that CLIP's tokenizer cannot tell from another text of the sample is left out and
        counted; so is a negative that equals any of the sample's captions, drawn or not.

        Args:
            sample: The sample.
            epoch: Counted from 0.
            key: Seeds the draw in place of the sample's own, for one that appears beside others.

        Returns:
            The texts, and what was made and refused.
        """
        drawing = _Drawing(self, sample, epoch, sample.drawn_by if key is None else key)
        for each in self.plan.rewrites:
            drawing.rewrite(each)
        if self.plan.graph is not None:
            drawing.graph()
        if self.plan.bags is not None:
            drawing.bag()
        if self.plan.units is not None:
            drawing.units(self.plan.units)
        if self.plan.phrases:
            drawing.phrases(self.plan.phrases)
        if self.plan.target:
            drawing.target()
        if self.plan.masks is not None:
            drawing.mask(self.plan.masks, self._concepts)
        return drawing.texts, drawing.counts

    def parse(self, text: str) -> Caption:
        """The parse of a text, of a plan that has parsed captions."""
        assert self._parsed is not None  # a plan that rewrites has parsed captions: __init__
        return self._parsed[text]

    def rewrite(self, name: str) -> Rewrite:
        """A rewrite of the plan."""
        return self._rewrites[name]

    def rng(self, key: str, epoch: int, name: str) -> random.Random:
        """The generator of one draw."""
        return rng_for(self._seed, key, epoch, name)

    def graph_texts(
        self, caption: Caption, rng: random.Random, epoch: int, with_negatives: bool
    ) -> tuple[list[Rewritten], Counter[tuple[str, str]]]:
        """The graph texts of a caption, positives first, by the curriculum; and the refusals."""
        graph = self.plan.graph
        assert graph is not None
        stage = graph.at(epoch)
        made = sample_graph_texts(
            caption,
            rng,
            weights=graph.weights,
            positives=stage.positives,
            negatives=stage.negatives,
            vocabulary=self._vocabulary,
            graph_filter="valid" if graph.filtered else "none",
        )
        negatives = made.negatives if with_negatives else ()
        return [*made.positives, *negatives], made.refused

    def unit_parts(self, caption: str) -> tuple[Sequence[UnitPart], Sequence[UnitPart]] | None:
        """The entities and the relations of a caption; None where the file of units has none."""
        if self._units is not None:
            return self._units.find(caption)
        return graph_parts(self.parse(caption))

    def _find(self) -> Mapping[str, Rewrite]:
        names = {*self.plan.all_rewrites} - {*OF_DATA, *WRITTEN}
        return {name: self._resolve(name) for name in sorted(names)}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_rewrites"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._rewrites = self._find()


class _Drawing:
    """The texts of one sample while they are drawn."""

    def __init__(self, plan: TextPlan, sample: Sample, epoch: int, key: str) -> None:
        self._plan, self._sample, self._epoch, self._key = plan, sample, epoch, key
        self._offered: Counter[str] = Counter()
        self.counts = PlanCounts(samples=1)
        rng = plan.rng(key, epoch, "caption")
        self.caption = sample.captions[0] if plan.plan.main else rng.choice(sample.captions)
        cleaned = plan.plan.cleaned != "variations" or bool(sample.group)
        words = plan.plan.pre_caption if cleaned else 0
        shown = (pre_caption(self.caption, words) if words else "") or self.caption
        if plan.plan.absent:
            shown = self._with_absent_object() or shown
        self.texts = [Drawn(shown, Role.CAPTION)]
        if not plan.plan.kinds:
            return
        self._captions = {token_key(text) for text in sample.captions}
        # The role of every text so far, by what CLIP's tokenizer makes of it.
        self._taken = {token_key(text): Role.CAPTION for text in (self.caption, shown)}
        fraction = plan.plan.hn_fraction
        # By caption, whatever the epoch, as if the data had negatives for a part of the captions.
        which = plan.rng(f"{sample.id}\x1f{self.caption}", 0, "hn-fraction")
        self._negatives = which.random() < fraction

    def _with_absent_object(self) -> str:
        """The caption saying what is absent; "" where nothing can be said."""
        name, sample = ABSENT_OBJECT.name, self._sample
        rng = self._plan.rng(self._key, self._epoch, name)
        texts = map(self._plan.parse, dict.fromkeys((self.caption, *sample.captions)))
        made = ABSENT_OBJECT.among(list(texts), rng)
        if isinstance(made, Rewritten):
            self._count(name)
            return made.text
        self.counts.refused[name, made.reason] += 1
        return ""

    def rewrite(self, each: str | OneOf) -> None:
        """At most one text from a rewrite, or from one of several."""
        if isinstance(each, str):
            self._offer(each)
            return
        rng = self._plan.rng(self._key, self._epoch, each.name)
        # The first that applies; in random order that is uniform among those that apply.
        if any(self._offer(name) for name in each.order(rng)):
            self._count(each.name)
        else:
            self.counts.refused[each.name, NONE_APPLIES] += 1

    def graph(self) -> None:
        """Sub-graph texts."""
        rng = self._plan.rng(self._key, self._epoch, "graph")
        parsed = self._plan.parse(self.caption)
        made, refused = self._plan.graph_texts(parsed, rng, self._epoch, self._negatives)
        self.counts.refused.update(refused)
        for text in made:
            self._add(_drawn(text), text.rewrite)

    def units(self, plan: UnitPlan) -> None:
        """Units of the caption, each with its foil, in slots."""
        rng = self._plan.rng(self._key, self._epoch, UNIT)
        parts = self._plan.unit_parts(self.caption)
        if parts is None:
            self.counts.refused[UNIT, NONE_WRITTEN] += 1
            return
        drawn = draw_units(
            *parts,
            rng,
            slots=plan.slots,
            relation_share=plan.relation_share,
            pair_share=plan.pair_share,
            taken=frozenset(self._taken),
            named=frozenset(w for text in self._sample.captions for w in token_key(text)),
        )
        self.counts.refused.update({(UNIT, why): n for why, n in drawn.refused.items()})
        for kind, foil_kind, (unit, foil) in zip(plan.units, plan.foils, drawn.units):
            if self._add(_drawn(unit), kind, UNIT) and self._negatives:
                self._add(_drawn(foil), foil_kind, UNIT_FOIL)

    def phrases(self, most: int) -> None:
        """Noun phrases of the caption in their order; the caption where it has none."""
        rng = self._plan.rng(self._key, self._epoch, NOUN_PHRASE)
        found = noun_phrases(self._plan.parse(self.caption))
        chosen = sorted(rng.sample(range(len(found)), min(most, len(found))))
        texts = [Drawn(found[i], Role.POSITIVE) for i in chosen]
        if sum(self._add(each, NOUN_PHRASE) for each in texts) == 0:
            self.counts.refused[NOUN_PHRASE, NO_PHRASE] += 1
            self.texts.append(Drawn(self.caption, Role.POSITIVE, NOUN_PHRASE))

    def bag(self) -> None:
        """The sentences of the sample's bag, each with its negative; the caption without a bag."""
        plan, bags = self._plan.plan.bags, self._plan.bags
        assert plan is not None
        found = self._other_captions() if bags is None else bags.find(self._sample.id)
        sentences = found or []
        if not sentences:
            self.counts.refused[BAG, NO_BAG] += 1
        rng = self._plan.rng(self._key, self._epoch, BAG)
        if plan.draw == "replacement":
            pool = [*sentences, BagSentence(self.caption)]
            for place, sentence in enumerate(rng.choices(pool, k=plan.size)):
                if self._add(Drawn(sentence.text, Role.POSITIVE), BAG, again=True):
                    # What is drawn again has a negative of its own.
                    self._bag_negative(sentence, f"{place}\x1f{sentence.text}", again=True)
            return
        if not sentences:
            self.texts.append(Drawn(self.caption, Role.POSITIVE, BAG))
        positions = sorted(rng.sample(range(len(sentences)), min(plan.size, len(sentences))))
        for sentence in (sentences[i] for i in positions):
            if self._add(Drawn(sentence.text, Role.POSITIVE), BAG):
                self._bag_negative(sentence, sentence.text)

    def target(self) -> None:
        """The caption that a head is to write, chosen among those that the plan allows."""
        captions = self._sample.captions
        if self._plan.plan.target == "other":
            captions = tuple(each.text for each in self._other_captions()) or (self.caption,)
        rng = self._plan.rng(self._key, self._epoch, TARGET)
        self.texts.append(Drawn(rng.choice(captions), Role.POSITIVE, TARGET))

    def mask(self, plan: MaskPlan, concepts: ConceptFile | None) -> None:
        """What a second pass hides of the caption and its image."""
        rng = self._plan.rng(self._key, self._epoch, MASK)
        parsed = None if concepts else self._plan.parse(self.caption)
        found = concepts.find(self.caption) if concepts else None
        mask = draw_mask(plan, parsed, found, rng)
        self.texts[0] = replace(self.texts[0], mask=mask)
        if mask.spans(self.texts[0].text):
            self._count(MASK)
        else:
            self.counts.refused[MASK, NO_CONCEPT] += 1

    def _bag_negative(self, sentence: BagSentence, key: str, again: bool = False) -> None:
        """The negative of a sentence: the file's, or one by a rewrite that applies."""
        bags = self._plan.plan.bags
        assert bags is not None
        if not self._negatives:
            return
        if sentence.negative is not None:
            self._add(Drawn(sentence.negative, Role.NEGATIVE), BAG_NEGATIVE, again=again)
            return
        rng = self._plan.rng(self._key, self._epoch, f"{BAG_NEGATIVE}\x1f{key}")
        names = bags.negatives
        for name in rng.sample(names, len(names)) if len(names) > 1 else names:
            made = self._made(name, sentence.text, rng)
            if self._add(made, BAG_NEGATIVE, f"{BAG_NEGATIVE} ({name})", again):
                self._count(BAG_NEGATIVE)
                return
        self.counts.refused[BAG_NEGATIVE, NONE_APPLIES] += 1

    def _other_captions(self) -> list[BagSentence]:
        """The captions of the sample that differ from the one drawn and each other, for a bag."""
        known = {token_key(self.caption): self.caption}
        for text in self._sample.captions:
            known.setdefault(token_key(text), text)
        return [BagSentence(text) for text in list(known.values())[1:]]

    def _offer(self, name: str) -> bool:
        """Add the text of a rewrite, if there is one."""
        kind = kind_named(name)
        again = self._offered[name]
        self._offered[name] += 1
        rng = self._plan.rng(self._key, self._epoch, f"{kind}\x1f{again}" if again else kind)
        if name == GIVEN:
            drawn: Drawn | str = NOT_CHOSEN
            if self._negatives:
                known = {*self._captions, *self._taken} if again else self._captions
                drawn = _draw_given(self._sample, known, rng)
            return self._add(drawn, name)
        if name == GIVEN_POSITIVE:
            return self._add(_draw_positive(self._sample, rng), name)
        if name == OTHER_CAPTION:
            others = self._other_captions()
            fresh = [each.text for each in others if token_key(each.text) not in self._taken]
            other = Drawn(rng.choice(fresh), Role.POSITIVE) if fresh else NO_OTHER_CAPTION
            return self._add(other, name)
        return self._add(self._made(name, self.caption, rng), kind)

    def _made(self, name: str, text: str, rng: random.Random) -> Drawn | str:
        """One draw of a rewrite, or of the texts written for `text`; or why there is none."""
        written = name in WRITTEN
        positive = name == WRITTEN_POSITIVE if written else self._plan.rewrite(name).keeps_meaning
        if not (positive or self._negatives):
            return NOT_CHOSEN
        if written:
            return self._written(text, positive, rng)
        made = _apply(self._plan.rewrite(name), self._plan.parse(text), rng)
        if self._plan.plan.cleaned == "texts" and isinstance(made, Drawn):
            words = self._plan.plan.pre_caption
            made = replace(made, text=pre_caption(made.text, words) or made.text)
        return made

    def _written(self, text: str, positive: bool, rng: random.Random) -> Drawn | str:
        """One of the texts written for a text, or what is wrong with the first of them."""
        assert self._plan.written is not None
        texts = self._plan.written.find(text, positive=positive)
        judged = [(each, self._against(text, each, positive)) for each in texts]
        fine = [each for each, objection in judged if objection is None]
        if fine:
            return Drawn(rng.choice(fine), Role.POSITIVE if positive else Role.NEGATIVE)
        return next((objection for _, objection in judged if objection), NONE_WRITTEN)

    def _against(self, text: str, written: str, positive: bool) -> str | None:
        """The objection to a text that was written for another, if any."""
        objection = form_objection(text, written)
        if objection or not positive:
            return objection
        return positive_objection(self._plan.parse(text), self._plan.parse(written))

    def _add(self, drawn: Drawn | str, name: str, counted: str = "", again: bool = False) -> bool:
        """Take a text if it is new to CLIP, else count why not.

        counted: what it is counted as, if not by its name. again: also one of its own side that was
        taken before.
        """
        counted = counted or name
        if isinstance(drawn, Drawn) and (objection := self._objection(drawn, again)):
            drawn = objection
        if isinstance(drawn, str):
            self.counts.refused[counted, drawn] += 1
            return False
        self._taken.setdefault(token_key(drawn.text), drawn.role)
        self.texts.append(Drawn(drawn.text, drawn.role, name))
        self._count(counted)
        return True

    def _objection(self, drawn: Drawn, again: bool) -> str:
        key = token_key(drawn.text)
        if drawn.role is Role.NEGATIVE and key in self._captions:
            return EQUALS_CAPTION
        taken = self._taken.get(key)
        if taken is None or (again and (taken is Role.NEGATIVE) is (drawn.role is Role.NEGATIVE)):
            return ""
        return EQUALS_OTHER

    def _count(self, name: str) -> None:
        self.counts.made[name] += 1
        self.counts.covered[name] = 1


def _draw_given(sample: Sample, captions: set[tuple[str, ...]], rng: random.Random) -> Drawn | str:
    """One of the negatives that came with the data, or the reason why there is none."""
    if not sample.negatives:
        return NONE_GIVEN
    different = [text for text in sample.negatives if token_key(text) not in captions]
    if not different:
        return EQUALS_CAPTION
    fitting = [text for text in different if fits_context(text)]
    return Drawn(rng.choice(fitting), Role.NEGATIVE) if fitting else TOO_LONG


def _draw_positive(sample: Sample, rng: random.Random) -> Drawn | str:
    """One of the captions in other words that came with the data, or why there is none."""
    if not sample.positives:
        return NONE_GIVEN
    fitting = [text for text in sample.positives if fits_context(text)]
    return Drawn(rng.choice(fitting), Role.POSITIVE) if fitting else TOO_LONG


def _apply(rewrite: Rewrite, caption: Caption, rng: random.Random) -> Drawn | str:
    """One draw of a rewrite, or the reason why there is none."""
    result = rewrite(caption, rng)
    if not isinstance(result, Rewritten):
        return result.reason
    return _drawn(result)


def _drawn(text: Rewritten) -> Drawn:
    return Drawn(text.text, Role.POSITIVE if text.keeps_meaning else Role.NEGATIVE, text.rewrite)


# --- Parsing every caption before training, so that workers only look parses up. ---

_KEPT = 1 << 14  # parses each process keeps in memory


class StoredCaptions:
    """Parses by caption text, read from the store on demand; may be sent to worker processes.

    cut: how many captions of the source were too long to be parsed whole.
    Millions of parses would not fit into the memory of each worker, the few most recent ones do.
    """

    def __init__(self, store: ParseStore, cut: int = 0) -> None:
        self.cut = cut
        self._store = store
        self._recent = lru_cache(_KEPT)(self._find)

    def __getitem__(self, text: str) -> Caption:
        """The parse of a caption; one that is not stored is parsed now.

        Raises CompoclipError when the store cannot be read.
        """
        return self._recent(text)

    def _find(self, text: str) -> Caption:
        return self._store.get(text) or self._store.get_or_parse([text])[text]

    def __reduce__(self) -> tuple[type[StoredCaptions], tuple[ParseStore, int]]:
        return StoredCaptions, (self._store, self.cut)


def prepare_captions(
    source: Source, store: ParseStore | None = None, workers: int | None = None
) -> StoredCaptions:
    """Parse all captions of `source` that `store` does not know yet, showing progress.

    An interrupted run continues where it was.

    Args:
        source: The samples.
        store: By default one file in the user's cache folder, shared by all runs.
        workers: Processes that parse, by default one for each available core; they are started for
            thousands of captions only, as fresh interpreters (a script that calls this needs its
            `__main__` guard).

    Returns:
        The parses by caption.

    Raises:
        CompoclipError: When the store cannot be written.
    """
    if store is None:
        store = ParseStore(cache_folder() / "parses.sqlite")
    if workers is None:
        workers = available_cores()
    cut = 0

    def captions() -> Iterator[str]:
        nonlocal cut
        for text in track(source.captions(), "parsing captions", unit="captions"):
            cut += is_cut(text)
            yield text

    store.fill(captions(), workers)
    return StoredCaptions(store, cut)
