"""The caption plan: the texts that a method samples for each caption.

A sort of texts is an object that states its needs and kinds and samples texts. A plan is a list of
them and knows none by name. `TextPlan` samples by a plan.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from compoclip.captions.clip_text import fits_context, token_key
from compoclip.data.drawing import EQUALS_CAPTION, NONE_APPLIES, NOT_CHOSEN, Drawing, Drawn
from compoclip.data.sources import NEGATIVES, POSITIVES, Source
from compoclip.data.text_names import GIVEN, GIVEN_POSITIVE, OF_DATA, OTHER_CAPTION
from compoclip.errors import UsageError
from compoclip.losses.contract import Role
from compoclip.patterns import ROW_FILES, find_files
from compoclip.rewrites.base import kind_named
from compoclip.rewrites.edit import TOO_LONG
from compoclip.typed import check_fields

NONE_GIVEN = "none-given"
NO_OTHER_CAPTION = "no-other-caption"
# Values of sorts that a plan does not have, in the records of runs.
_ABSENT = {"phrases": 0, "target": ""}


@dataclass(frozen=True)
class OneOf:
    """One text, by a rewrite sampled uniformly among the applicable ones.

    Args:
        name: Name of the choice in counts.
        of: The rewrites.
    """

    name: str
    of: tuple[str, ...]

    def order(self, rng: random.Random) -> list[str]:
        """Return the rewrites in the order in which they are tried."""
        return rng.sample(self.of, len(self.of))


@dataclass(frozen=True)
class FirstOf(OneOf):
    """One text, by the first applicable rewrite."""

    def order(self, rng: random.Random) -> list[str]:
        """Return the order of the rows."""
        return list(self.of)


@dataclass(frozen=True)
class Texts:
    """A sort of texts for each caption, sampled again for every sample and epoch.

    The fields of a sort are its options, `--set texts.NAME.FIELD=VALUE`; a sort with one option
    also takes `--set texts.NAME=VALUE`.

    Attributes:
        name: Name in settings and records.
        label: Name in tables and messages; "" if its texts are not encoded.
        roles: Roles of its texts.
        from_file: The option that names its file, and what reads that file.
        hides: The parts of a pair, "words" or "patches", that a second pass masks.
    """

    name: ClassVar[str]
    label: ClassVar[str] = ""
    roles: ClassVar[tuple[Role, ...]] = ()
    from_file: ClassVar[tuple[str, Callable[[Path], Any]] | None] = None

    def __post_init__(self) -> None:
        """Raise UsageError for an option of another type or out of its range."""
        check_fields(self, f"texts.{self.name}.")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of its texts that are encoded."""
        return ()

    @property
    def rewrites(self) -> tuple[str, ...]:
        """Return the rewrites that it uses."""
        return ()

    @property
    def needs_parsing(self) -> bool:
        """Return whether it needs parsed captions."""
        return True

    @property
    def hides(self) -> frozenset[str]:
        """See the class."""
        return frozenset()

    @property
    def files(self) -> tuple[str, ...]:
        """Return the names of the files that it reads, see `find_files`; "" is none."""
        return (getattr(self, self.from_file[0]),) if self.from_file else ()

    def read(self) -> Any:
        """Read its file; return None without one. Raises CompoclipError."""
        if self.from_file is None:
            return None
        option, read = self.from_file
        file = getattr(self, option)
        return read(Path(file)) if file else None

    def draw_texts(self, drawing: Drawing, loaded: Any) -> None:
        """Add its texts of a sample. loaded: the result of `read`."""
        raise NotImplementedError

    def record(self) -> Any:
        """Return its options, JSON-ready, for logs, checkpoints and signatures."""
        values = asdict(self)
        return values if len(values) != 1 else next(iter(values.values()))


@dataclass(frozen=True)
class Rewrites(Texts):
    """At most one text from each rewrite, or from one of several; see `CaptionPlan`."""

    of: tuple[str | OneOf, ...]
    name: ClassVar[str] = "rewrites"

    @property
    def rewrites(self) -> tuple[str, ...]:
        """Return the rewrites, each choice with all its alternatives."""
        return tuple(
            name
            for choice in self.of
            for name in ((choice,) if isinstance(choice, str) else choice.of)
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of the rewrites."""
        return tuple(map(kind_named, self.rewrites))

    @property
    def needs_parsing(self) -> bool:
        """Return whether any text does not come with the data."""
        return bool(set(self.rewrites).difference(OF_DATA))

    def draw_texts(self, drawing: Drawing, loaded: Any) -> None:
        """Add them in the order of the plan."""
        offered: Counter[str] = Counter()
        for choice in self.of:
            if isinstance(choice, str):
                _offer(drawing, choice, offered)
            # The first applicable one; in random order that is uniform among the applicable ones.
            elif any(_offer(drawing, n, offered) for n in choice.order(drawing.rng(choice.name))):
                drawing.counts.count(choice.name)
            else:
                drawing.refuse(choice.name, NONE_APPLIES)


def _offer(drawing: Drawing, name: str, offered: Counter[str]) -> bool:
    """Add the text of a rewrite, if any. A name may be offered several times."""
    kind = kind_named(name)
    again = offered[name]
    offered[name] += 1
    rng = drawing.rng(f"{kind}\x1f{again}" if again else kind)
    sample, taken = drawing.sample, drawing.taken
    outcome: Drawn | str
    if name == GIVEN:
        outcome = NOT_CHOSEN
        if drawing.negatives:
            taken_keys = {*drawing.captions, *taken} if again else drawing.captions
            fresh = [text for text in sample.negatives if token_key(text) not in taken_keys]
            outcome = EQUALS_CAPTION if sample.negatives else NONE_GIVEN
            if fresh:
                fitting = [text for text in fresh if fits_context(text)]
                outcome = Drawn(rng.choice(fitting), Role.NEGATIVE) if fitting else TOO_LONG
    elif name == GIVEN_POSITIVE:
        outcome = TOO_LONG if sample.positives else NONE_GIVEN
        if fitting := [text for text in sample.positives if fits_context(text)]:
            outcome = Drawn(rng.choice(fitting), Role.POSITIVE)
    elif name == OTHER_CAPTION:
        fresh = [text for text in drawing.other_captions() if token_key(text) not in taken]
        outcome = Drawn(rng.choice(fresh), Role.POSITIVE) if fresh else NO_OTHER_CAPTION
    else:
        outcome = drawing.rewrite(name, drawing.caption, rng, drawing.negatives)
    return drawing.add(outcome, kind)


@dataclass(frozen=True)
class CaptionPlan:
    """The texts that accompany a caption, sampled again for every sample and epoch.

    Args:
        rewrites: At most one text per entry, by the name of a rewrite or the file of a custom one;
            a repeated name yields different texts. "given" is a negative of the data,
            "given-positive" a paraphrase of the data, "other-caption" another caption of the image,
            "written-positive" and "written-negative" are texts of the file `written`.
        hn_fraction: Share of captions with negatives: always the same captions, and a smaller share
            is a subset of a larger one.
        texts: Further sorts of texts, sampled in this order after the rewrites.
        main: Take the first caption of a sample instead of a random one.
        written: File of written texts (see `read_written_texts`).
        pre_caption: Clean captions (lower case, no marks) and cut them to this many words; 0 turns
            this off. Other texts are made from the original.
        cleaned: What to clean: all captions, captions of variations (see `Groups`), or all captions
            and the texts of rewrites.
        absent: Add to captions that an object is absent, if one can be found (the rewrite
            absent-object; no caption of the image names it). Other texts are made from the
            original.
    """

    rewrites: tuple[str | OneOf, ...] = ()
    hn_fraction: float = 1.0
    texts: tuple[Texts, ...] = ()
    main: bool = False
    written: str = ""
    pre_caption: int = 0
    cleaned: Literal["all", "variations", "texts"] = "all"
    absent: bool = False

    def __post_init__(self) -> None:
        words, share = self.pre_caption, self.hn_fraction
        if words < 0:
            raise UsageError(f"captions of {words} words: must be 0 (all) or more")
        if not 0 <= share <= 1:
            raise UsageError(f"hn-fraction {share}: must lie between 0 and 1")

    @property
    def sorts(self) -> tuple[Texts, ...]:
        """Return all sorts of texts in the order of sampling."""
        return (Rewrites(self.rewrites), *self.texts)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of this plan's texts, each once; `Layout.rewrite` indexes them."""
        return tuple(dict.fromkeys(kind for sort in self.sorts for kind in sort.kinds))

    @property
    def rewrite_names(self) -> tuple[str, ...]:
        """Return the rewrites, each choice with all its alternatives."""
        return self.sorts[0].rewrites

    @property
    def all_rewrites(self) -> tuple[str, ...]:
        """Return the rewrites of the plan and of its other sorts of texts."""
        return tuple(name for sort in self.sorts for name in sort.rewrites)

    @property
    def needs_parsing(self) -> bool:
        """Return whether any text is made from parsed captions."""
        return self.absent or any(sort.needs_parsing for sort in self.sorts)

    @property
    def hides(self) -> frozenset[str]:
        """Return the parts of a pair, "words" or "patches", that a second pass masks."""
        return frozenset().union(*(part.hides for part in self.texts))

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that texts are read from."""
        names = (self.written, *(name for sort in self.texts for name in sort.files))
        return tuple(file for name in names if name for file in find_files(name, ROW_FILES))

    def record(self) -> dict[str, Any]:
        """Return the plan, JSON-ready, for logs, checkpoints and signatures."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["rewrites"] = [r if isinstance(r, str) else asdict(r) for r in self.rewrites]
        del values["texts"]
        return {**_ABSENT, **values, **{part.name: part.record() for part in self.texts}}

    def require(self, source: Source) -> None:
        """Raise UsageError when the data lack a field that the plan needs."""
        if GIVEN in self.rewrite_names:
            needed = (
                "negatives; add a column neg_caption, or use --negatives negclip if the method "
            )
            source.require(NEGATIVES, f"{needed}has this option")
        if GIVEN_POSITIVE in self.rewrite_names:
            needed = "captions in other words; add a column pos_caption, or use rewrites if the "
            source.require(POSITIVES, f"{needed}method has an option for them")
