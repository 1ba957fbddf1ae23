"""The caption plan: which texts a method draws for each caption, and the files they may come from.

`TextPlan` draws the texts of a sample by a `CaptionPlan`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from compoclip.data.columns import require_texts
from compoclip.data.sources import NEGATIVES, POSITIVES, Source
from compoclip.errors import CompoclipError, UsageError
from compoclip.rewrites.base import kind_named
from compoclip.rewrites.graph_edits import CATEGORIES as GRAPH_CATEGORIES
from compoclip.rewrites.mosaic import POSITIVE as GRAPH_POSITIVE
from compoclip.rewrites.units import NOUN_PHRASE, UNIT, UNIT_FOIL
from compoclip.tables import read_records

# The plan's names for what came with the data: hard negatives, captions in other words, and other
# captions of the image, as positives.
GIVEN, GIVEN_POSITIVE, OTHER_CAPTION = "given", "given-positive", "other-caption"
OF_DATA = (GIVEN, GIVEN_POSITIVE, OTHER_CAPTION)
# ... and for texts of a file of written ones
WRITTEN_POSITIVE, WRITTEN_NEGATIVE = "written-positive", "written-negative"
WRITTEN = (WRITTEN_POSITIVE, WRITTEN_NEGATIVE)
BAG, BAG_NEGATIVE = "bag", "bag-negative"
TARGET = "target"  # a text that is drawn with the others, and not encoded
OWN_CAPTIONS = "captions"  # instead of a file of bags


@dataclass(frozen=True)
class OneOf:
    """One text, from a rewrite drawn uniformly among those that apply to the caption.

    Args:
        name: What the choice is counted as.
        of: The rewrites.
    """

    name: str
    of: tuple[str, ...]

    def order(self, rng: random.Random) -> list[str]:
        """The rewrites in the order in which they are tried."""
        return rng.sample(self.of, len(self.of))


@dataclass(frozen=True)
class FirstOf(OneOf):
    """One text, from the first of the rewrites that applies to the caption."""

    def order(self, rng: random.Random) -> list[str]:
        """As they stand."""
        return list(self.of)


@dataclass(frozen=True)
class Stage:
    """A stage of a curriculum of graph texts.

    Args:
        start: First epoch of the stage, counted from 0.
        positives: Most positive texts of a caption.
        negatives: Most negative texts of a caption.
    """

    start: int
    positives: int
    negatives: int


@dataclass(frozen=True)
class GraphPlan:
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

    def __post_init__(self) -> None:
        """Raises UsageError for weights or stages that nothing can be drawn by."""
        if min(self.weights) < 0 or not sum(self.weights) > 0:
            raise UsageError(f"graph weights must be >= 0, one of them more, not {self.weights}")
        starts = [stage.start for stage in self.stages]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise UsageError(f"curriculum stages must start at epoch 0 and rise, not {starts}")
        if any(min(stage.positives, stage.negatives) < 0 for stage in self.stages):
            raise UsageError("a curriculum stage cannot have fewer than 0 texts")

    @classmethod
    def published(
        cls, objects: float, second_stage: int, vocabulary: str = "", filtered: bool = True
    ) -> GraphPlan:
        """The plan with share `objects` of the category object, the other two alike.

        One positive and one negative before epoch `second_stage`, at most 3 and 6 from it on.
        """
        if not 0 <= objects <= 1:
            raise UsageError(f"the share of object negatives must be 0 to 1, not {objects}")
        other = (1 - objects) / 2
        first = (Stage(0, 1, 1),) if second_stage > 0 else ()
        stages = (*first, Stage(max(0, second_stage), 3, 6))
        return cls((objects, other, other), stages, vocabulary, filtered)

    def at(self, epoch: int) -> Stage:
        """The stage of an epoch."""
        return [stage for stage in self.stages if stage.start <= epoch][-1]


@dataclass(frozen=True)
class BagPlan:
    """Sentences of each image from a file, and a negative of each (DAC).

    Args:
        file: JSON lines {"id", "sentences"} and optionally "negatives", one a sentence (null for
            none); or "captions": the bag of an image is its other captions.
        size: Sentences drawn per image in every epoch.
        negatives: Rewrites that make them where the file has none, for each sentence one drawn
            uniformly among those that apply.
        draw: "replacement" draws `size` sentences of bag and caption, of which some may be the
            same; "distinct" up to `size` of the bag.
    """

    file: str
    size: int = 10
    negatives: tuple[str, ...] = ("tsvlc-rb",)
    draw: Literal["replacement", "distinct"] = "replacement"

    def __post_init__(self) -> None:
        """Raises UsageError for an impossible size, and without anything to make negatives."""
        if self.size < 1:
            raise UsageError(f"a bag of {self.size} sentences: it must hold at least 1")
        if not self.negatives:
            raise UsageError("a bag needs a rewrite that makes its negatives")


@dataclass(frozen=True)
class UnitPlan:
    """Units of each caption, entities and relations, each with a foil of its own (CS-CLIP).

    The texts of slot k are of the kinds "unit-k" and "unit-foil-k", counted from 1.

    Args:
        slots: Most units of a caption.
        relation_share: How often a slot tries the caption's relations first; else it takes an
            entity.
        pair_share: How often an entity comes with another one ("A and B").
        file: Units and foils in the format of CS-CLIP's training data, by caption; "" takes them
            from the scene graph.
    """

    slots: int = 2
    relation_share: float = 1.0
    pair_share: float = 0.5
    file: str = ""

    def __post_init__(self) -> None:
        """Raises UsageError for no slot and for shares outside [0, 1]."""
        if self.slots < 1:
            raise UsageError(f"{self.slots} slots of units: there must be at least 1")
        if not all(0 <= share <= 1 for share in (self.relation_share, self.pair_share)):
            raise UsageError(
                f"shares of relations and pairs must lie between 0 and 1, not "
                f"{self.relation_share} and {self.pair_share}"
            )

    @property
    def units(self) -> tuple[str, ...]:
        """The kind of the unit in each slot."""
        return tuple(f"{UNIT}-{slot}" for slot in range(1, self.slots + 1))

    @property
    def foils(self) -> tuple[str, ...]:
        """The kind of the foil in each slot."""
        return tuple(f"{UNIT_FOIL}-{slot}" for slot in range(1, self.slots + 1))


@dataclass(frozen=True)
class MaskPlan:
    """What a masked second pass hides of each pair (MACCO): the words of the caption that say what
    things are like and how they stand to each other, and a part of the image.

    Args:
        images: Whether anything of images is hidden.
        file: Words and boxes in the format of MACCO's training data, by caption; "" takes words
            from the scene graph, and rectangles anywhere for boxes.
        rectangles: With a file, how often a rectangle is hidden in the place of boxes.
        area: Of a rectangle, as a fraction of the image; within a quarter of it.
    """

    images: bool = True
    file: str = ""
    rectangles: float = 0.1
    area: float = 0.75

    def __post_init__(self) -> None:
        """Raises UsageError for a share or an area outside [0, 1]."""
        if not 0 <= self.rectangles <= 1:
            raise UsageError(f"a share of rectangles of {self.rectangles}: must be 0 to 1")
        if not 0.01 <= self.area <= 1:
            raise UsageError(f"a rectangle of area {self.area}: must be 0.01 to 1")


@dataclass(frozen=True)
class CaptionPlan:
    """The texts that accompany a caption, all drawn again for every sample and epoch.

    Args:
        rewrites: At most one text each, by name or by the file of one's own; a name that stands
            several times is drawn as often, each time another text. "given" is one of the negatives
            that came with the data, "given-positive" one of its captions in other words,
            "other-caption" another caption of the image,
            "written-positive" and "written-negative" are of the file `written`.
        hn_fraction: Share of captions that have negatives at all; always the same captions, and
            those of a smaller share are among those of a larger one.
        graph: Sub-graph texts, if any.
        bags: Bags of sentences, if any.
        units: Entities and relations with foils, if any.
        phrases: Most noun phrases of the caption, drawn as a bag of kind "noun-phrase"; an image
            without any has its caption for one. 0 is none.
        main: Always take the first caption of a sample, not one of its captions at random.
        written: File of written texts (see `WrittenTexts`).
        pre_caption: Captions are cleaned (lower case, no marks) and cut to this many words; 0
            leaves them as they are. Other texts are made from the original.
        cleaned: Whether these are all captions, those of variations alone (see `Groups`), or all
            captions and the texts of rewrites, too.
        target: A caption that a head is to write for an image, which no tower encodes: "other" is
            another caption of the image if there is one, "any" one of all, "" none.
        absent: Captions are shown saying of an object that it is not there, where one can be found
            (the rewrite absent-object; no caption of the image names it). Other texts are made from
            the original.
        masks: What a second pass hides of each pair, if there is one.
    """

    rewrites: tuple[str | OneOf, ...] = ()
    hn_fraction: float = 1.0
    graph: GraphPlan | None = None
    bags: BagPlan | None = None
    units: UnitPlan | None = None
    phrases: int = 0
    main: bool = False
    written: str = ""
    pre_caption: int = 0
    cleaned: Literal["all", "variations", "texts"] = "all"
    target: Literal["", "other", "any"] = ""
    absent: bool = False
    masks: MaskPlan | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for a share outside [0, 1] or a negative number of words."""
        if self.pre_caption < 0:
            raise UsageError(f"captions of {self.pre_caption} words: must be 0 (all) or more")
        if self.phrases < 0:
            raise UsageError(f"{self.phrases} noun phrases: must be 0 (none) or more")
        if self.target not in (known := ("", "other", "any")):
            raise UsageError(f"texts.target '{self.target}' is not one of {', '.join(known[1:])}")
        if not 0 <= self.hn_fraction <= 1:
            raise UsageError(f"hn-fraction {self.hn_fraction}: must lie between 0 and 1")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names that texts of this plan carry, each once; `Layout.rewrite` is an index here."""
        names = [kind_named(name) for each in self.rewrites for name in _names(each)]
        if self.graph is not None:
            names += [GRAPH_POSITIVE, *GRAPH_CATEGORIES]
        if self.bags is not None:
            names += [BAG, BAG_NEGATIVE]
        if self.units is not None:
            names += [kind for pair in zip(self.units.units, self.units.foils) for kind in pair]
        if self.phrases:
            names.append(NOUN_PHRASE)
        return tuple(dict.fromkeys(names))

    @property
    def rewrite_names(self) -> tuple[str, ...]:
        """The rewrites, each choice with all it may come down to."""
        return tuple(name for each in self.rewrites for name in _names(each))

    @property
    def all_rewrites(self) -> tuple[str, ...]:
        """The rewrites, and those that make the negatives of bags."""
        return (*self.rewrite_names, *(self.bags.negatives if self.bags is not None else ()))

    @property
    def needs_parsing(self) -> bool:
        """True if any text is made from parsed captions."""
        more = self.graph is not None or self.bags is not None or self.phrases > 0 or self.absent
        more |= self.units is not None and not self.units.file
        more |= self.masks is not None and not self.masks.file
        return more or bool(set(self.rewrite_names).difference(OF_DATA))

    def require(self, source: Source) -> None:
        """Raise UsageError when the data lack what the plan cannot do without."""
        if GIVEN in self.rewrite_names and NEGATIVES not in source.brings():
            raise UsageError(
                f"{source.describe()}: brings no negatives; it needs a column neg_caption, or take "
                "--negatives negclip where the method has it"
            )
        if GIVEN_POSITIVE in self.rewrite_names and POSITIVES not in source.brings():
            raise UsageError(
                f"{source.describe()}: brings no captions in other words; it needs a column "
                "pos_caption, or take texts that are made, where the method has them"
            )


def _names(rewrite: str | OneOf) -> tuple[str, ...]:
    return (rewrite,) if isinstance(rewrite, str) else rewrite.of


# --- Bags of sentences that describe an image densely, read from a file (DAC). ---

_SCHEMA = pa.schema(
    [
        ("sentences", pa.large_list(pa.large_string())),
        ("negatives", pa.large_list(pa.large_string())),
    ]
)


@dataclass(frozen=True)
class BagSentence:
    """One sentence of a bag and its negative, if the file has one."""

    text: str
    negative: str | None = None


class Bags:
    """Sentences by sample id, held compactly.

    The id of a sample is what its source calls it; a bag may also go by that id without "#row", so
    that one file serves tables in any order.
    """

    def __init__(self, path: Path) -> None:
        """Read `path`, JSON lines or Parquet, one file or several (see `row_files`): {"id",
        "sentences"} and optionally "negatives" (null for none).

        Raises UsageError when no file is named, CompoclipError for one that is malformed or holds
        an id twice.
        """
        if path == Path():
            raise UsageError(
                "this method needs a bag of sentences for each image: --bags FILE (where it is "
                "composed: --set texts.bags.file=FILE) with lines "
                '{"id": ..., "sentences": [...]}, or --bags captions: the other captions of the '
                "image"
            )
        self.path = path
        self._index: dict[str, int] = {}
        columns: tuple[list[Any], list[Any]] = ([], [])
        for origin, row in read_records(path):
            id, sentences, negatives = _bag(row, origin)
            if self._index.setdefault(id, len(self._index)) != len(columns[0]):
                raise CompoclipError(f"{origin}: a second bag {id!r}; remove one")
            columns[0].append(sentences)
            columns[1].append(negatives)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA)]
        self._sentences, self._negatives = arrays

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[str]:
        """The ids, in the order of the file."""
        return iter(self._index)

    def find(self, id: str) -> list[BagSentence] | None:
        """The bag of a sample, None when the file has none."""
        row = self._index.get(id)
        if row is None:
            row = self._index.get(id.rpartition("#")[0])
        if row is None:
            return None
        sentences = self._sentences[row].as_py()
        negatives = self._negatives[row].as_py() or [None] * len(sentences)
        return [BagSentence(text, negative) for text, negative in zip(sentences, negatives)]


def _bag(row: dict[str, Any], origin: str) -> tuple[str, list[str], list[str | None]]:
    """The id, the sentences that are not blank, and their negatives (or none at all)."""
    id: Any = row.get("id")
    sentences: Any = row.get("sentences")
    negatives: Any = row.get("negatives") or []
    if not isinstance(id, str | int) or not _bags_texts(sentences, str):
        raise CompoclipError(f'{origin}: needs "id" and "sentences", a list of texts')
    if not _bags_texts(negatives, str | None) or len(negatives) not in (0, len(sentences)):
        raise CompoclipError(f'{origin}: "negatives" needs a text (or null) for each sentence')
    require_texts((*sentences, *filter(None, negatives)), origin)
    kept = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    return (
        str(id),
        [sentences[i].strip() for i in kept],
        [(negatives[i] or "").strip() or None for i in kept] if negatives else [],
    )


def _bags_texts(value: object, kind: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


# --- Positives and negatives written for captions beforehand, read from a file. ---

_KINDS = ("positive", "negative")
_TEXTS = pa.large_list(pa.large_string())
_ABSENT = "none"  # what language models answer when there is nothing to write


class WrittenTexts:
    """Written positives and negatives by caption, held compactly."""

    def __init__(self, path: Path) -> None:
        """Read `path`, JSON lines or Parquet, one file or several (see `row_files`): {"caption",
        "positive", "negative"}, or one of the latter two, as `compoclip caption` writes them.

        "positive" and "negative" are a text or a list of texts; "None" and null stand for none.
        Lines of one caption add up, each text once. Raises UsageError when no file is named,
        CompoclipError for one that is malformed.
        """
        if path == Path():
            raise UsageError(
                "this method needs a file of written texts (where it is composed: "
                '--set texts.written=FILE) with lines {"caption": ..., "positive": ...}'
            )
        self.path = path
        self._index: dict[str, int] = {}
        columns: dict[str, list[list[str]]] = {kind: [] for kind in _KINDS}
        for origin, row in read_records(path):
            caption = row.get("caption")
            if not isinstance(caption, str) or not any(kind in row for kind in _KINDS):
                raise CompoclipError(
                    f'{origin}: needs "caption" and "positive" or "negative"; mend it'
                )
            place = self._index.setdefault(caption.strip(), len(self._index))
            for kind, column in columns.items():
                if place == len(column):
                    column.append([])
                texts = _written_texts(row.get(kind), f"{origin}: {kind!r}")
                column[place] += [text for text in texts if text not in column[place]]
        self._texts = {kind: pa.array(column, _TEXTS) for kind, column in columns.items()}

    def __len__(self) -> int:
        """Number of captions the file has texts for."""
        return len(self._index)

    def find(self, caption: str, *, positive: bool) -> list[str]:
        """The texts written for a caption, in the order of the file."""
        row = self._index.get(caption)
        kind = _KINDS[not positive]
        return [] if row is None else list(self._texts[kind][row].as_py())


def _written_texts(value: Any, origin: str) -> list[str]:
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(text, str) for text in texts):
        raise CompoclipError(f"{origin} is neither a text nor a list of texts; mend the line")
    require_texts(texts, origin)
    return [text for text in texts if text.strip().strip(".").lower() != _ABSENT]
