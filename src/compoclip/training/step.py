"""One training step up to the gradients: a batch in, losses out, gradients on the parameters."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from compoclip.data.batch import Batch
from compoclip.data.prepared import Preparation
from compoclip.errors import UsageError
from compoclip.losses.contract import ALONE, Features, Head, Layout, StatefulLoss
from compoclip.losses.dimensions import OF_TEACHER, LeadingDimensions
from compoclip.losses.teacher import WidthError
from compoclip.methods.base import LossTerm, Method
from compoclip.models.dual_encoder import DualEncoder, ExtraPass, PassInputs
from compoclip.models.text_plan import TextInputs
from compoclip.models.text_tower import TextFeatures
from compoclip.models.tokenizer import Tokenizer
from compoclip.models.work import Work
from compoclip.training.caches import FrozenTexts, ImageBank
from compoclip.training.distributed import GlobalBatch, without_rows
from compoclip.training.gradients import (
    GradientCache,
    GradientMean,
    autocast,
    refuse_batch_norm,
)
from compoclip.training.settings import RunSettings
from compoclip.training.teacher import ExternalTeacher, TeacherEncoder

_CHANCE = "the loss of equal scores"  # no name of a term


class StepResult(NamedTuple):
    """The loss of a step, on its device; reading a number waits for the device.

    terms: every loss term before weighting, by name. total: their weighted sum. chance: that sum
    if all features were equal, and so all scores; None unless asked for. Terms of heads have no
    such value, and count with their own.
    """

    terms: Mapping[str, Tensor]
    total: Tensor
    chance: Tensor | None = None

    def numbers(self) -> dict[str, float]:
        """Return the total as "loss" and each term as "loss/NAME"."""
        names = ["loss", *(f"loss/{name}" for name in self.terms)]
        return dict(zip(names, torch.stack([self.total, *self.terms.values()]).tolist()))


def step(
    encoder: DualEncoder,
    tokenize: Tokenizer,
    method: Method,
    batch: Batch,
    settings: RunSettings,
    global_batch: GlobalBatch | None = None,
    mean: GradientMean | None = None,
    scaler: torch.amp.GradScaler | None = None,
    frozen_texts: FrozenTexts | None = None,
    bank: ImageBank | None = None,
    with_chance: bool = False,
) -> StepResult:
    """Add the gradients of the method's loss on a batch to the parameters' gradients.

    Args:
        batch: This rank's images and texts.
        settings: Device, precision (bf16 and fp16 are autocast of the towers; losses are always
            float32) and micro-batch are read. Neither changes the gradients.
        global_batch: What the batches of all ranks make together, of which loss and gradients are;
            None for a batch alone.
        mean: Takes the mean of the gradients over the ranks, as soon as they are complete.
        scaler: Scales the gradients up, for fp16.
        frozen_texts: Caches texts, where of their tower only the projection learns.
        bank: Images of the whole data, for terms that read them.
        with_chance: Also compute the loss of equal scores.

    Raises:
        UsageError: When a micro-batch would change what a batch norm computes, for a loss that
            takes no account of other ranks where there are some, and for one that compares vectors
            with a teacher of another width.
    """
    # Everything about texts comes as numbers that a worker made; here only for a batch without.
    device = torch.device(settings.device)
    peers = ALONE if global_batch is None else global_batch.peers
    if (numbers := batch.numbers) is None:
        planner = encoder.text_planner(settings.micro_batch)
        numbers = Preparation(tokenize, planner)(batch)
    pixels = batch.normalised(device)
    texts, layout = numbers.on(device)
    masks = settings.mask_duplicates, settings.near_margin
    layout.shared_by(peers, *masks).unforeseen = batch.unforeseen

    # A rank whose images are all unreadable still takes part in every collective: it encodes a
    # stand-in, whose features are dropped.
    images = len(pixels)
    if images == 0:
        pixels = pixels.new_zeros(1, *pixels.shape[1:])

    # Patches and tokens are projected only for losses that read them.
    active = method.terms_on(batch.kind)
    local = any(term.needs_local for term in active)
    patches = local or any(term.needs_patches for term in active)
    state = any(term.head is not None and term.extra is None for term in active)
    passes = {term.extra.name for term in active if term.extra is not None}

    def amp() -> torch.autocast:
        return autocast(device, settings.precision)

    # Forward. `work` is not computed yet: it is one micro-batch, which is encoded with a graph as
    # usual, or several, which are encoded without one here, and again with one in backward.
    to_encode: TextInputs | Work[TextFeatures] = texts
    if frozen_texts is not None and not (local or state or passes):
        to_encode = frozen_texts.work(encoder, batch.texts, settings.micro_batch)
    size = settings.micro_batch
    work = encoder.work(pixels, to_encode, local, size, patches, state, batch.cached_at)
    for name in passes:
        inputs = PassInputs(encoder, pixels, texts, method.plan, batch, local, size)
        work = cast(ExtraPass, encoder.heads[name]).extend(work, inputs)
    cache = None
    if not work.whole:
        refuse_batch_norm(encoder.model)
        cache = GradientCache(work, amp, device)
        features = cache.features
    else:
        with amp():
            features = work.all()

    # What the teacher makes of the same batch, for losses that compare with it.
    if any(term.needs_teacher for term in active):
        if isinstance(encoder.teacher, ExternalTeacher):
            features = encoder.teacher.add_to(features, batch, size)
        else:
            assert isinstance(encoder.teacher, TeacherEncoder)
            with amp():
                features = encoder.teacher.add_to(
                    encoder, features, pixels, texts, size, batch.cached_at
                )

    if bank is not None:
        features = bank.add_to(features)

    # Losses: this rank's share of them. Nothing here waits for the device: gradients of a loss that
    # is not finite are computed, too, and the optimiser leaves them (`step_if_finite`).
    if images == 0:
        features = without_rows(features)
    if settings.contrast == "softmax":
        features = replace(features, logit_bias=None)
    targets = batch.targets or tuple(repeat("", batch.images))
    try:
        terms, loss = weighted_loss(active, features, layout, dict(encoder.heads), targets)
    except WidthError as error:
        raise UsageError(str(error)) from error
    sums = dict(terms)
    if with_chance:
        sums[_CHANCE] = chance_loss(active, features, layout, terms)
    *values, total = peers.summed(torch.stack([*sums.values(), loss])).unbind()
    summed = dict(zip(sums, values))
    chance = summed.pop(_CHANCE, None)

    # Backward: to the parameters, or to the cached features and from there to the parameters. From
    # W times the share, since the mean over the ranks is taken of the gradients.
    start = torch.full_like(loss, peers.world)
    if scaler is not None:
        start = scaler.scale(start)
    if cache is None and mean is not None:
        mean.backward(loss, start)
    else:
        loss.backward(start)  # type: ignore[no-untyped-call]
    if cache is not None:
        cache.backward()
        if mean is not None:
            mean.backward(torch.zeros_like(loss))
    return StepResult(summed, total, chance)


def on_dimensions(method: Method, widths: tuple[int, ...], copied: bool = True) -> Method:
    """Return the method with its losses averaged over whole features and these widths.

    Losses of heads, which read other spaces, and losses with a state, which are called once a step,
    stay as they are. copied: whether a teacher is a copy of the model, whose features are cut, too.
    """
    pooled = OF_TEACHER if copied else ()
    stay = {
        term.name
        for term in method.losses
        if term.head or (isinstance(term.loss, StatefulLoss) and term.loss.state_dict())
    }
    cut = (
        t if t.name in stay else replace(t, loss=LeadingDimensions(t.loss, widths, pooled))
        for t in method.losses
    )
    return replace(method, losses=tuple(cut)) if widths else method


def module_name(term: str) -> str:
    """The name of a term's head among modules, whose names have no dots."""
    return term.replace(".", "-")


def weighted_loss(
    active: Sequence[LossTerm],
    features: Features,
    layout: Layout,
    heads: Mapping[str, nn.Module] = types.MappingProxyType({}),
    targets: Sequence[str] = (),
) -> tuple[dict[str, Tensor], Tensor]:
    """Compute every loss term, and their weighted sum.

    This rank's share of the unweighted terms, by name, and of the sum, as scalars with gradients.
    targets: texts for heads to write, one per image, or "". Raise UsageError when a loss is no
    single number, or ignores the other ranks.
    """
    terms: dict[str, Tensor] = {}
    for term in active:
        before = layout.peers.calls
        if term.head is None:
            terms[term.name] = term.loss(features, layout)
        else:
            head = cast(Head, heads[module_name(term.name)])
            terms[term.name] = head.loss(features, layout, targets)
        value: object = terms[term.name]
        if not isinstance(value, Tensor) or value.ndim > 0:
            kind = f"shape {[*value.shape]}" if isinstance(value, Tensor) else type(value).__name__
            raise UsageError(
                f"the loss {term.name} must return a tensor with a single number and no dimension, "
                f"such as losses.mean(), found {kind}"
            )
        if layout.peers.world > 1 and layout.peers.calls == before:
            raise UsageError(
                f"the loss {term.name} ignores the other processes (`Layout.sizes`): train in one "
                "process"
            )
    return terms, torch.stack([term.weight * terms[term.name] for term in active]).sum()


def chance_loss(
    active: Sequence[LossTerm], features: Features, layout: Layout, terms: Mapping[str, Tensor]
) -> Tensor:
    """Return this rank's share of the weighted loss of features that are all equal.

    It is what a model reaches that tells nothing apart: ln N for a contrast of N pairs. A term of
    a head keeps its value in `terms`.
    """
    constant = {
        name: torch.full_like(value, value.shape[-1] ** -0.5)
        for name, value in vars(features).items()
        if isinstance(value, Tensor) and value.ndim > 1 and value.is_floating_point()
    }
    equal = replace(features, **constant)
    with torch.no_grad():
        # A copy of a loss is called, so that one with a state does not notice.
        values = [
            terms[term.name] if term.head else deepcopy(term.loss)(equal, layout) for term in active
        ]
        return torch.stack([term.weight * value for term, value in zip(active, values)]).sum()
