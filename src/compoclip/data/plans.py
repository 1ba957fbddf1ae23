"""Which texts and which images a method wants beside the data's own, as plain data.

`TextPlan` draws the texts of a sample by a `CaptionPlan`; `BatchLoader` makes batches by an
`ImagePlan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compoclip.errors import UsageError
from compoclip.rewrites.graph_edits import CATEGORIES as GRAPH_CATEGORIES
from compoclip.rewrites.mosaic import POSITIVE as GRAPH_POSITIVE

GIVEN = "given"  # the plan's name for hard negatives that came with the data
# ... and for texts of a file of written ones
WRITTEN_POSITIVE, WRITTEN_NEGATIVE = "written-positive", "written-negative"
WRITTEN = (WRITTEN_POSITIVE, WRITTEN_NEGATIVE)
BAG, BAG_NEGATIVE = "bag", "bag-negative"
OWN_CAPTIONS = "captions"  # in the place of a file of bags
CLIC_TEXTS = ("clic-2", "clic-3", "clic-4")
CROSS_SWAP = "cross-swap"


@dataclass(frozen=True)
class OneOf:
    """One text, from a rewrite drawn uniformly among those of `of` that apply to the caption."""

    name: str
    of: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """From epoch `start` (counted from 0) on, at most so many positive and negative graph texts."""

    start: int
    positives: int
    negatives: int


@dataclass(frozen=True)
class GraphPlan:
    """Positive and negative sub-graph texts of each caption (MosaiCLIP).

    weights: of the categories object, relation, attribute. stages: the curriculum, in order of
    `start`, the first at 0. vocabulary: file with the words of replacements; "" is the built-in.
    filtered: whether texts pass the validity rules.
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

    file: JSON lines {"id", "sentences"} and optionally "negatives", one a sentence (null for none);
    or "captions": the bag of an image is its other captions.
    size: sentences an epoch, drawn anew. negatives: what makes them where the file has none, for
    each a rewrite drawn uniformly among those that apply. draw: "replacement" draws `size`
    sentences of bag and caption, of which some may be the same; "distinct" up to `size` of the bag.
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
class CaptionPlan:
    """Which texts accompany a caption; all are drawn anew for every sample and epoch.

    rewrites: at most one text each. "given" is one of the negatives that came with the data,
    "written-positive" and "written-negative" are of the file `written` (see `WrittenTexts`).
    hn_fraction: the share of captions that have negatives at all; always the same captions, and
    those of a smaller share are among those of a larger one.
    graph, bags: see there; None is none. main: always take the first caption of a sample, not one
    of its captions at random. pre_caption: captions are cleaned (lower case, no marks) and cut to
    so many words, 0 leaves them; other texts are made of them as they were. cleaned: whether these
    are all captions, or those of variations alone (see `Groups`).
    """

    rewrites: tuple[str | OneOf, ...] = ()
    hn_fraction: float = 1.0
    graph: GraphPlan | None = None
    bags: BagPlan | None = None
    main: bool = False
    written: str = ""
    pre_caption: int = 0
    cleaned: Literal["all", "variations"] = "all"

    def __post_init__(self) -> None:
        """Raises UsageError when the share is no share, or a number of words less than 0."""
        if self.pre_caption < 0:
            raise UsageError(f"captions of {self.pre_caption} words: must be 0 (all) or more")
        if not 0 <= self.hn_fraction <= 1:
            raise UsageError(f"hn-fraction {self.hn_fraction}: must lie between 0 and 1")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names that texts of this plan carry, each once; `Layout.rewrite` is an index here."""
        names = [name for each in self.rewrites for name in _names(each)]
        if self.graph is not None:
            names += [GRAPH_POSITIVE, *GRAPH_CATEGORIES]
        if self.bags is not None:
            names += [BAG, BAG_NEGATIVE]
        return tuple(dict.fromkeys(names))

    @property
    def rewrite_names(self) -> tuple[str, ...]:
        """The rewrites, each choice with all it may come down to."""
        return tuple(name for each in self.rewrites for name in _names(each))

    @property
    def needs_parsing(self) -> bool:
        """Whether any text is made from parsed captions."""
        more = self.graph is not None or self.bags is not None
        return more or bool(set(self.rewrite_names) - {GIVEN})


def _names(rewrite: str | OneOf) -> tuple[str, ...]:
    return (rewrite,) if isinstance(rewrite, str) else rewrite.of


@dataclass(frozen=True)
class Single:
    """Every image of the data by itself."""


@dataclass(frozen=True)
class Composed:
    """Two images of one orientation joined to one, with texts of both (CLIC).

    layout: "squash" gives each image its half whatever its shape, "letterbox" keeps its shape and
    pads. normalisation: "model" or "imagenet" (released, composed images only). alternate: every
    other step shows single images with their captions instead. sentences: "auto" cuts long captions
    into sentences, "never" does not (see `with_sentences`).
    """

    layout: Literal["squash", "letterbox"] = "squash"
    normalisation: Literal["model", "imagenet"] = "model"
    alternate: bool = True
    sentences: Literal["auto", "never"] = "auto"


@dataclass(frozen=True)
class Neighbours:
    """`count` similar images with each image, with captions and negatives (NegCLIP).

    mined: find them with the model's image features before training, the `among` nearest of each;
    otherwise they come with the data (column neg_image).
    """

    count: int = 1
    mined: bool = False
    among: int = 3

    def __post_init__(self) -> None:
        """Raises UsageError when more are wanted than there are to draw from."""
        if not 0 <= self.count <= self.among:
            raise UsageError(
                f"{self.count} hard images of the {self.among} nearest: must be 0 to {self.among}"
            )


@dataclass(frozen=True)
class NegativeImages:
    """The image made from the negative caption, with each image (TripletCLIP)."""


@dataclass(frozen=True)
class Groups:
    """Batches of variations of one object among ordinary pairs (GNM-CLIP).

    A group takes `variations` samples with the same `group` column, and `pairs` without one.
    Variations whose `score` is not above least_score, or whose `image_score` is not above
    least_image_score, are left out; those without a score stay.
    """

    variations: int = 2
    pairs: int = 8
    least_score: float = 0.0
    least_image_score: float = 14.0

    def __post_init__(self) -> None:
        """Raises UsageError for impossible numbers."""
        if self.variations < 1 or self.pairs < 0:
            raise UsageError("a group needs at least 1 variation and no fewer than 0 pairs")


SINGLE = Single()
ImagePlan = Single | Composed | Neighbours | NegativeImages | Groups


def image_name(plan: ImagePlan) -> str:
    """The name of an image plan in tables and records: "single", "negative images"."""
    return "negative images" if isinstance(plan, NegativeImages) else type(plan).__name__.lower()


def image_kinds(plan: ImagePlan) -> tuple[str, ...]:
    """The names that texts which an image plan adds carry."""
    return (*CLIC_TEXTS, CROSS_SWAP) if isinstance(plan, Composed) else ()
