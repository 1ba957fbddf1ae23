"""Sample the texts of an item in an epoch by a `CaptionPlan`; parse captions beforehand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

from compoclip.captions.chunks import pre_caption
from compoclip.captions.store import ParseStore
from compoclip.captions.types import Caption, is_cut
from compoclip.console import track
from compoclip.data.caption_plan import CaptionPlan, OneOf
from compoclip.data.drawing import NOT_CHOSEN, Drawing, Drawn, PlanCounts
from compoclip.data.sources import Sample, Source
from compoclip.data.text_names import OF_DATA, WRITTEN, WRITTEN_POSITIVE
from compoclip.data.written import NONE_WRITTEN, read_written_texts
from compoclip.files import cache_folder
from compoclip.losses.contract import Role
from compoclip.rewrites.absent_object import ABSENT_OBJECT, say_absent
from compoclip.rewrites.base import Rewrite, Rewritten, get_rewrite, rng_for
from compoclip.rewrites.written import form_objection, positive_objection
from compoclip.workers import available_cores


class ParsedCaptions(Protocol):
    """Parsed captions by text, as prepared before training."""

    def __getitem__(self, text: str) -> Caption: ...


class TextPlan:
    """Samples texts; they depend on seed, sample id and epoch only.

    Args:
        plan: The caption plan, or the names of its rewrites.
        seed: Seed of all texts.
        parsed: Parsed captions; a plan of negatives from the data needs none.
        resolve: Returns a rewrite by name (or raises); called in each process, so that a plan can
            be sent to workers with any rewrites.
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
        self._sorts = [(sort, sort.read()) for sort in self.plan.sorts]
        written = bool(self.plan.written) or {*self.plan.all_rewrites}.intersection(WRITTEN)
        self.written = read_written_texts(Path(self.plan.written)) if written else None

    def draw(
        self, sample: Sample, epoch: int, key: str | None = None
    ) -> tuple[list[Drawn], PlanCounts]:
        """Return the caption, then the rewrites and other texts in the order of the plan, and
        counts.

        Texts with the CLIP tokens of another text of the sample are left out and counted; so are
        negatives that equal a caption of the sample. key: seeds the draw instead of the sample's
        key, for neighbours.
        """
        plan, counts = self.plan, PlanCounts(samples=1)
        rng = partial(self.rng, sample.drawn_by if key is None else key, epoch)
        caption = sample.captions[0] if plan.main else rng("caption").choice(sample.captions)
        cleaned = plan.cleaned != "variations" or bool(sample.group)
        main_text = self._cleaned(caption) if cleaned else caption
        if plan.absent:
            name = ABSENT_OBJECT.name
            parsed = [self.parse(text) for text in dict.fromkeys((caption, *sample.captions))]
            extended = say_absent(parsed, rng(name))
            if isinstance(extended, Rewritten):
                main_text = extended.text
                counts.count(name)
            else:
                counts.refused[name, extended.reason] += 1
        texts = [Drawn(main_text, Role.CAPTION)]
        # By caption, not epoch, as if the data had negatives for a share of the captions.
        chosen = self.rng(f"{sample.id}\x1f{caption}", 0, "hn-fraction").random()
        negatives = chosen < plan.hn_fraction
        drawing = Drawing(
            sample, epoch, caption, texts, negatives, rng, self.parse, self.rewritten, counts
        )
        for sort, loaded in self._sorts:
            sort.draw_texts(drawing, loaded)
        return texts, counts

    def parse(self, text: str) -> Caption:
        """Return the parse of a text, if the plan has parsed captions."""
        assert self._parsed is not None  # a plan that rewrites has parsed captions: __init__
        return self._parsed[text]

    def rng(self, key: str, epoch: int, name: str) -> random.Random:
        """Return the random generator of one draw."""
        return rng_for(self._seed, key, epoch, name)

    def rewritten(self, name: str, text: str, rng: random.Random, negatives: bool) -> Drawn | str:
        """Return one text by a rewrite, or one written for `text`; or why there is no such text.

        negatives: whether a negative may be made.
        """
        written = name in WRITTEN
        positive = name == WRITTEN_POSITIVE if written else self._rewrites[name].keeps_meaning
        if not (positive or negatives):
            return NOT_CHOSEN
        if written:  # a valid text, or the objection to the first
            assert self.written is not None
            fine, objections = [], []
            for candidate in (self.written.find(text) or ((), ()))[0 if positive else 1]:
                objection = form_objection(text, candidate)
                if positive and not objection:
                    objection = positive_objection(self.parse(text), self.parse(candidate))
                if objection is None:
                    fine.append(candidate)
                else:
                    objections.append(objection)
            if fine:
                return Drawn(rng.choice(fine), Role.POSITIVE if positive else Role.NEGATIVE)
            return objections[0] if objections else NONE_WRITTEN
        result = self._rewrites[name](self.parse(text), rng)
        if not isinstance(result, Rewritten):
            return result.reason
        if self.plan.cleaned == "texts":
            result = replace(result, text=self._cleaned(result.text))
        return Drawn.of(result)

    def _cleaned(self, text: str) -> str:
        words = self.plan.pre_caption
        return (pre_caption(text, words) if words else "") or text

    def _find(self) -> Mapping[str, Rewrite]:
        names = {*self.plan.all_rewrites} - {*OF_DATA, *WRITTEN}
        return {name: self._resolve(name) for name in sorted(names)}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_rewrites"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._rewrites = self._find()


# --- Parsing every caption before training, so that workers only look parses up. ---

_KEPT = 1 << 14  # parses each process keeps in memory


class StoredCaptions:
    """Parses by caption text, read from the store on demand; can be pickled.

    cut: number of captions of the source that were too long to be parsed whole.
    Only recent parses stay in memory: millions would not fit into that of each worker.
    """

    def __init__(self, store: ParseStore, cut: int = 0) -> None:
        self.cut = cut
        self._store = store
        self._recent = lru_cache(_KEPT)(store.get_or_parse)

    def __getitem__(self, text: str) -> Caption:
        """The stored parse of a caption, or a new one. Raises CompoclipError."""
        return self._recent(text)

    def __reduce__(self) -> tuple[type[StoredCaptions], tuple[ParseStore, int]]:
        return StoredCaptions, (self._store, self.cut)


def prepare_captions(
    source: Source, store: ParseStore | None = None, workers: int | None = None
) -> StoredCaptions:
    """Parse all captions of `source` that `store` lacks, with progress; resumable.

    Args:
        source: The samples.
        store: The parse store; by default a file in the user's cache folder, shared by all runs.
        workers: Parsing processes, by default one per core. They are started for thousands of
            captions only, as fresh interpreters (a calling script needs its `__main__` guard).

    Raises CompoclipError when the store cannot be written.
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
