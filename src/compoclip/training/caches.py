"""Features that are kept: gradient caching for large batches, and those of a frozen image tower.

Gradient caching computes the gradients of a whole batch in the memory of a micro-batch. Losses see
all features of a batch at once, encoders need not. So every micro-batch is encoded twice: first
without a graph, which leaves the features; the losses' gradients with respect to these features are
kept; then once more, with a graph, through which they flow to the parameters. The sums are those of
one backward pass over the whole batch, in another order.

Reference: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup
(RepL4NLP 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compoclip.data.batch import Batch
from compoclip.errors import UsageError
from compoclip.losses.contract import Features
from compoclip.models.dual_encoder import DualEncoder
from compoclip.models.preprocess import Tokenizer
from compoclip.models.text_plan import TextInputs
from compoclip.models.text_tower import TextFeatures
from compoclip.models.work import FeatureWork, MicroBatch, Outputs, Work, joined

Amp = Callable[[], AbstractContextManager[object]]

# Fewer rows than this may take another route through the arithmetic libraries, and round otherwise.
_LEAST = 8


# --- Gradient caching. ---


@dataclass(frozen=True)
class _Encoded:
    """A micro-batch that has been encoded without a graph.

    outputs: leaves, which collect gradients if the tower learns. random: the states of the random
    generators (CPU, then the device if it is another) before it was encoded.
    """

    encode: MicroBatch
    outputs: Outputs
    learns: bool
    random: tuple[Tensor, ...]

    @property
    def wanted(self) -> list[int]:
        """The outputs that a loss had a gradient for."""
        return [i for i, leaf in enumerate(self.outputs) if leaf.grad is not None]


class GradientCache:
    """The features of a batch, encoded micro-batch by micro-batch without a graph.

    Args:
        work: The batch, cut into micro-batches.
        amp: The precision that every micro-batch is encoded in, both times.
        device: Where it is encoded.

    Attributes:
        features: What losses see. Gradients of a loss stop here; `backward` carries them on.
    """

    def __init__(self, work: FeatureWork, amp: Amp, device: torch.device) -> None:
        self._amp, self._device = amp, device
        image = [self._encoded(each, work.image.learns) for each in work.image.micro_batches]
        text = [self._encoded(each, work.text.learns) for each in work.text.micro_batches]
        self._towers = image, text
        with amp():
            self.features: Features = work.join(
                [each.outputs for each in image], [each.outputs for each in text]
            )

    def backward(self, last: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        """Encode every micro-batch that learns again, and add its gradients to the parameters'.

        Dropout and drop-path repeat what they drew the first time; the random state is left as it
        is found.

        Args:
            last: Entered around the backward pass of each tower's last micro-batch, which makes the
                gradients of that tower complete.
        """
        for tower in self._towers:
            learning = [each for each in tower if each.learns and each.wanted]
            for each in learning:
                with _random_states(self._device, each.random), self._amp():
                    outputs = each.encode()
                with last() if each is learning[-1] else nullcontext():
                    torch.autograd.backward(
                        [outputs[i] for i in each.wanted],
                        [each.outputs[i].grad for i in each.wanted],
                    )

    def _encoded(self, encode: MicroBatch, learns: bool) -> _Encoded:
        random = _states(self._device)
        with torch.no_grad(), self._amp():
            outputs = encode()
        leaves = tuple(each.detach().requires_grad_(learns) for each in outputs)
        return _Encoded(encode, leaves, learns, random)


def refuse_batch_norm(network: nn.Module) -> None:
    """Raise UsageError when a layer computes statistics over the batch.

    Over a micro-batch they would be other statistics, and other gradients. Frozen batch norms, in
    eval mode, compute none.
    """
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            tower = "image" if name.startswith("visual.") else "text"
            raise UsageError(
                f"--micro-batch: the {tower} tower normalises over the batch ({name} is a batch "
                "norm that learns), so a piece of it gives other features than the whole: leave "
                "--micro-batch out, or freeze that tower"
            )


def _states(device: torch.device) -> tuple[Tensor, ...]:
    if device.type == "cuda":
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)
    return (torch.get_rng_state(),)


@contextmanager
def _random_states(device: torch.device, states: tuple[Tensor, ...]) -> Iterator[None]:
    """Inside the block random numbers go on from `states`, after it as if it had not been."""
    own = _states(device)
    _set_states(device, states)
    try:
        yield
    finally:
        _set_states(device, own)


def _set_states(device: torch.device, states: tuple[Tensor, ...]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


# --- Features of a frozen image tower, encoded once for each image that is shown. ---


class FrozenImages:
    """Remembers what a frozen image tower made of an image, by the name of what is shown.

    Works for any augmentation, since the name says it all (`Batch.views`): an image that a crop or
    another partner in a composite has made new is encoded as ever. Features stay on the model's
    device.

    Args:
        most: Bytes of features to keep; what comes later is encoded every time.
        texts: The same for texts, where their tower is frozen but for its projection.

    Attributes:
        asked: Images that were wanted so far.
        found: Those of them that were remembered.
        bytes: Size of all features kept.
    """

    def __init__(self, most: int = 4 << 30, texts: FrozenTexts | None = None) -> None:
        self.texts = texts
        self._most = most
        self._kept: dict[Hashable, Outputs] = {}
        self.bytes = self.asked = self.found = 0

    def work(
        self,
        encoder: DualEncoder,
        batch: Batch,
        pixels: Tensor,
        ids: Tensor | TextInputs | Work[TextFeatures],
        local: bool,
        micro_batch: int,
        patches: bool = False,
        state: bool = False,
    ) -> FeatureWork:
        """`encoder.work` of the same arguments that encodes new images only.

        pixels: those of the batch, which names its `views`, normalised. The image tower must be
        frozen.
        """
        keys = _keys(batch, local or patches)
        known = {key: self._kept[key] for key in keys if key in self._kept}
        rows = [i for i, key in enumerate(keys) if key not in known]
        self.asked += len(keys)
        self.found += len(keys) - len(rows)
        if rows:  # some that are known beside few that are not, see _LEAST
            rows += [i for i, key in enumerate(keys) if key in known][: max(0, _LEAST - len(rows))]
        new = pixels if rows == list(range(len(pixels))) else pixels[rows]
        work = encoder.work(new, ids, local, micro_batch, patches, state)

        def join(images: Sequence[Outputs], texts: Sequence[Outputs]) -> Features:
            found = dict(known)
            if images:
                encoded = [joined(each) for each in zip(*images)]
                for at, row in enumerate(rows):
                    if keys[row] not in found:
                        found[keys[row]] = self._keep(keys[row], [each[at] for each in encoded])
            whole = tuple(torch.stack(each) for each in zip(*(found[key] for key in keys)))
            return work.join([whole], texts)

        image = work.image if rows else Work((), work.image.join, learns=False)
        return FeatureWork(image, work.text, join)

    def _keep(self, key: Hashable, features: Sequence[Tensor]) -> Outputs:
        """Own copies of an image's features, kept if there is room."""
        own = tuple(each.detach().clone() for each in features)
        size = sum(each.numel() * each.element_size() for each in own)
        if isinstance(key, tuple) and self.bytes + size <= self._most:
            self._kept[key] = own
            self.bytes += size
        return own


def _keys(batch: Batch, patches: bool) -> list[Hashable]:
    """Everything the features of each image depend on; its number in the batch if that is not
    known, which is no key beyond the batch."""
    return [
        (view, batch.mean, batch.std, patches) if view else number
        for number, view in enumerate(batch.views)
    ]


# --- The same of texts, where nothing of their tower learns but the projection. ---


class FrozenTexts:
    """Remembers what the layers of a frozen text tower made of a text; only its projection learns.

    Args:
        tokenize: The encoder's tokenizer.
        most: Bytes of states to keep, on the model's device; what comes later is encoded every
            time.

    Attributes:
        asked: Distinct texts of batches so far.
        found: Those of them that were remembered.
        bytes: Size of all states kept.
    """

    def __init__(self, tokenize: Tokenizer, most: int = 4 << 30) -> None:
        self._tokenize = tokenize
        self._most = most
        self._kept: dict[str, Tensor] = {}
        self.bytes = self.asked = self.found = 0

    def work(
        self, encoder: DualEncoder, texts: Sequence[str], micro_batch: int
    ) -> Work[TextFeatures]:
        """The work of encoding texts, of which little is left: those that are new, and to project.

        Args:
            encoder: Whose text tower is frozen but for its projection.
            texts: T texts; none stand for one that is empty.
            micro_batch: See `DualEncoder.work`.

        Returns:
            One micro-batch, whose outputs are states (T, W) without gradient.
        """
        texts = texts or ("",)
        distinct = dict.fromkeys(texts)

        def encode() -> Outputs:
            known = {text: self._kept[text] for text in distinct if text in self._kept}
            new = [text for text in distinct if text not in known]
            self.asked += len(distinct)
            self.found += len(known)
            if new:
                states = encoder.text_states(self._tokenize(new), micro_batch)
                known.update(zip(new, map(self._keep, new, states)))
            return (torch.stack([known[text] for text in texts]),)

        def join(outputs: Sequence[Outputs]) -> TextFeatures:
            return encoder.project_texts(joined([each[0] for each in outputs]))

        return Work((encode,), join, learns=False)

    def _keep(self, text: str, state: Tensor) -> Tensor:
        size = state.numel() * state.element_size()
        if self.bytes + size <= self._most:
            state = state.clone()
            self._kept[text] = state
            self.bytes += size
        return state
