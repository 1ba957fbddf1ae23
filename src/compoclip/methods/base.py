"""The parts of a training recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from compoclip import plugins
from compoclip.config import package_yaml
from compoclip.console import note
from compoclip.data.caption_plan import CaptionPlan as CaptionPlan
from compoclip.data.caption_plan import Texts
from compoclip.data.images import ImagePlan, Single
from compoclip.data.texts import BY_VALUE
from compoclip.errors import UsageError
from compoclip.losses.contract import HeadPlan, Loss, Role
from compoclip.losses.contrastive import clip_loss, negclip_loss
from compoclip.methods.optim import Optim as Optim
from compoclip.methods.settings import PARTS
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.lora import Lora as Lora
from compoclip.rewrites.base import rewrite_sources
from compoclip.typed import Within, check_fields

POSITIVES = (Role.POSITIVE,)
NEGATIVES = (Role.NEGATIVE,)

_LORA_LR = 10  # learning rate of adapters over that of full fine-tuning


class PassPlan(HeadPlan):
    """A loss term's plan for a further pass; `build` makes an `ExtraPass`.

    Attributes:
        name: Of the module among the heads.
        needs: The field of the method's texts that says what the pass is given.
    """

    name: ClassVar[str]
    needs: ClassVar[str]

    def require(self, texts: CaptionPlan, encoder: DualEncoder) -> None:
        """Raise CompoclipError when an encoder cannot make the pass of such texts."""

    def changes_images(self, texts: CaptionPlan) -> str:
        """Return what to do without when images may not change, as no cache of features holds the
        changed ones; "" for a pass that leaves them as they are."""
        return ""


@dataclass(frozen=True)
class LossTerm:
    """A weighted loss.

    Args:
        name: Name in logs and in `--set terms.NAME.weight`.
        loss: The function, or the plan of a head that computes the loss.
        weight: Factor of the loss; `recipe` leaves out terms of weight 0.
        needs_local: Whether it reads patch and token features.
        on: The kind of batch ("composed", "single") that it applies to; "" is every batch.
        reads: The roles of the texts it reads, besides captions.
        needs_patches: Whether it reads patch features only, which more models have.
        needs_teacher: Whether it reads the features of the method's teacher.
        needs_bank: Whether it reads the features of images of the whole data.
        extra: The plan of the further pass that it reads.
    """

    name: str
    loss: Loss
    weight: float = 1.0
    needs_local: bool = False
    on: str = ""
    reads: tuple[Role, ...] = ()
    needs_patches: bool = False
    needs_teacher: bool = False
    needs_bank: bool = False
    extra: PassPlan | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for a weight that is not 0 or more."""
        if not 0 <= self.weight < math.inf:
            raise UsageError(f"loss term {self.name}: the weight {self.weight:g} must be 0 or more")

    @property
    def head(self) -> HeadPlan | None:
        """Return the plan of the head that computes the loss, or None."""
        return self.loss if isinstance(self.loss, HeadPlan) else None


CLIP = LossTerm("clip", clip_loss)
NEGCLIP = LossTerm("negclip", negclip_loss, reads=NEGATIVES)
"""The contrast of a batch without and with its negatives, terms of many recipes."""

Matrix = Literal["", "projection", "after"]
"""The matrix that learns in a frozen text tower: none, its projection, or one after that."""


@dataclass(frozen=True)
class Teacher:
    """A copy of the model whose weights follow the model's.

    After every step each of its weights w becomes decay w + (1 - decay) v, with the model's v; a
    decay of 1 freezes the copy before the first step.
    """

    decay: Annotated[float, Within(0, 1)] = 1.0

    def __post_init__(self) -> None:
        """Raise UsageError for a decay outside [0, 1]."""
        check_fields(self, "teacher.")


@dataclass(frozen=True)
class Trains:
    """The parameters that learn.

    Args:
        image_tower: The whole image tower, with its projection.
        text_tower: The whole text tower, with its projection.
        logit_scale: The temperature.
        text_norm: The last LayerNorm of the text tower, if that tower learns.
        text_blocks: Share of the blocks of the text tower that learn, from the first one on; what
            stands before and after the blocks learns in any case.
        matrix: One matrix of an otherwise frozen text tower: its projection, or a square matrix
            after it, which starts as the identity and is merged into it at the end.
        start_scale: Initial s of a new temperature, which leaves the model's unchanged; 0 trains
            the model's.
    """

    image_tower: bool = True
    text_tower: bool = True
    logit_scale: bool = True
    text_norm: bool = True
    text_blocks: float = 1.0
    matrix: Matrix = ""
    start_scale: float = 0.0

    def __post_init__(self) -> None:
        """Raise UsageError for an unknown matrix, or a scale that no temperature can have."""
        check_fields(self, "trains.")
        scale = self.start_scale
        if self.matrix and self.text_tower:
            raise UsageError(
                "trains.matrix: the text tower must be frozen, trains.text_tower=false"
            )
        if not 0 < self.text_blocks <= 1:
            raise UsageError(
                f"trains.text_blocks {self.text_blocks:g}: must be above 0 and at most 1"
            )
        if scale and not 1 <= scale <= 100:
            raise UsageError(f"trains.start_scale {scale:g}: must be 0, or 1 to 100")


@dataclass(frozen=True)
class PaperDifference:
    """An option for which paper and released code differ, as `differences.yaml` lists them."""

    option: str
    why: str
    paper: float | str | None = None
    released: float | str | None = None


@cache
def listed_differences() -> dict[str, tuple[PaperDifference, ...]]:
    """Return the differences between paper and released code of the package's methods, by name."""
    listed = package_yaml(Path(__file__).with_name("differences.yaml"))
    return {
        name: tuple(PaperDifference(**row) for row in rows)
        for name, rows in listed.items()
        if name != "shared"
    }


@dataclass(frozen=True)
class Method:
    """One published recipe: texts, images, weighted losses, trainable parts, optimiser defaults.

    Args:
        losses: The terms of the loss.
        plan: The texts besides captions.
        name: Name on the command line; `recipe` fills it in.
        optim: Optimiser and schedule defaults.
        trains: The parameters that learn.
        images: The image plan.
        settings: The values of the recipe's options; `recipe` fills them in.
        lora: Adapters that learn instead of the weights of the trained towers; everything else,
            including the temperature, is then frozen.
        teacher: The teacher of terms with `needs_teacher`.
        crop: Whether training uses random crops, or whole images as in evaluation.
        composed: Changes of the recipe by options such as `--terms`.
        paper: Its publication.
        stand_ins: Rewrite -> the published text source it replaces; logged at the start.
        differences: Differences between paper and released code; `recipe` adds the listed ones.
        made_in: Path -> hash of the local sources of the recipe; `recipe` fills them in.
    """

    losses: tuple[LossTerm, ...]
    plan: CaptionPlan = field(default_factory=CaptionPlan)
    name: str = ""
    optim: Optim = field(default_factory=Optim)
    trains: Trains = Trains()
    images: ImagePlan = field(default_factory=Single)
    settings: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    lora: Lora | None = None
    teacher: Teacher | None = None
    crop: bool = True
    composed: tuple[str, ...] = ()
    paper: str = ""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    differences: tuple[PaperDifference, ...] = ()
    made_in: Mapping[str, str] = field(default_factory=dict)

    def with_lora(self, lora: Lora, lr: float | None = None) -> Method:
        """Return this method with adapters, at a learning rate of lr.

        By default the method's, times ten if it had no adapters.
        """
        if lr is None:
            lr = self.optim.lr if self.lora else _LORA_LR * self.optim.lr
        return replace(self, lora=lora, optim=replace(self.optim, lr=lr))

    def scaled(self, factor: float, *terms: str) -> Method:
        """Return this method with the weights of these loss terms times `factor`."""
        factors = dict.fromkeys(terms, factor)
        losses = (replace(t, weight=factors.get(t.name, 1) * t.weight) for t in self.losses)
        return replace(self, losses=tuple(losses))

    def for_data(self, brings: frozenset[str]) -> Method:
        """Return this method for data with these columns (see `Source.brings`).

        If the data lack the images that the method needs, it trains on its texts only, under the
        name NAME-text, and a note says so.
        """
        images, lacking = self.images.for_data(brings)
        if not lacking:
            return self
        base, plus, added = self.name.partition("+")
        name = f"{base}-text{plus}{added}"
        note(f"{self.name}: {lacking}; without the loss on them this is {name}")
        return replace(self, name=name, images=images)

    def terms_on(self, kind: str) -> tuple[LossTerm, ...]:
        """Return the loss terms of a batch of this kind."""
        return tuple(term for term in self.losses if term.on in ("", kind))

    @property
    def settable(self) -> dict[str, list[str]]:
        """Return the names that --set takes in every part of this method."""
        parts = {part: getattr(self, "plan" if part == "texts" else part) for part in PARTS[1:]}
        names = {part: names_in(value) for part, value in parts.items() if value is not None}
        return {PARTS[0]: [term.name for term in self.losses], **names}

    @property
    def needs_local(self) -> bool:
        """Return whether any loss reads patch and token features."""
        return any(term.needs_local for term in self.losses)

    @property
    def needs_patches(self) -> bool:
        """Return whether any loss reads patch features."""
        return any(term.needs_local or term.needs_patches for term in self.losses)

    @property
    def needs_teacher(self) -> bool:
        """Return whether any loss reads the features of a teacher."""
        return any(term.needs_teacher for term in self.losses)

    @property
    def needs_bank(self) -> bool:
        """Return whether a term reads the features of images of the whole data."""
        return any(term.needs_bank for term in self.losses)

    @property
    def passes(self) -> tuple[PassPlan, ...]:
        """Return the further passes that losses read, each once."""
        return tuple({term.extra.name: term.extra for term in self.losses if term.extra}.values())

    @property
    def heads(self) -> dict[str, HeadPlan]:
        """Return the heads by term name, and the further passes by pass name."""
        heads = {term.name: term.head for term in self.losses if term.head is not None}
        return heads | {extra.name: extra for extra in self.passes}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the names of all kinds of text besides captions."""
        return tuple(dict.fromkeys((*self.images.kinds, *self.plan.kinds)))

    @property
    def needs_parsing(self) -> bool:
        """Return whether any text is made from parsed captions."""
        return self.plan.needs_parsing or bool(self.images.kinds)

    @property
    def sources(self) -> dict[str, str]:
        """Return file -> hash of each local source and the local modules it imports."""
        losses = plugins.sources_of(*(term.loss for term in self.losses))
        rewrites = rewrite_sources(self.plan.all_rewrites)
        return plugins.named_sources({**self.made_in, **losses, **rewrites})

    def record(self) -> dict[str, Any]:
        """Return the record of the method for logs, checkpoints and signatures.

        It holds terms, texts, images and changes; teacher, heads and local sources if any.
        """
        more = {
            "teacher": asdict(self.teacher) if self.teacher and self.needs_teacher else {},
            "heads": {name: head.record() for name, head in self.heads.items()},
            "sources": self.sources,
        }
        return {
            "terms": [{"name": t.name, "weight": t.weight, "on": t.on} for t in self.losses],
            "texts": self.plan.record(),
            "images": self.images.record(),
            "composed": list(self.composed),
            **{name: value for name, value in more.items() if value},
        }

    def value_of(self, option: str) -> float | str:
        """Return this method's value of an option of a `PaperDifference`."""
        options = {**asdict(self.optim), **self.settings, "crop": self.crop}
        options |= {f"lora_{k}": v for k, v in (vars(self.lora) if self.lora else {}).items()}
        options["mask_duplicates"] = True  # the default of a run
        if option not in options:
            raise ValueError(f"{self.name} has no option '{option}'")
        value: float | str = options[option]
        return value


def names_in(target: object) -> list[str]:
    """Return the names that a setting takes in a part of a method, sorts of text included."""
    names = [field.name for field in fields(target)] if is_dataclass(target) else []
    if isinstance(target, CaptionPlan):
        return [*(name for name in names if name != "texts"), *sorts_of(target)]
    return names


def sorts_of(plan: CaptionPlan) -> dict[str, Texts]:
    """Return the sorts of text that a setting may name: the plan's, and those that it adds."""
    return {**BY_VALUE, **{part.name: part for part in plan.texts}}
