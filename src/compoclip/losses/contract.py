"""The inputs of a loss: features and batch layout, without text, files or configuration."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, wraps
from typing import (
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    runtime_checkable,
)

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Role(IntEnum):
    """The role of a text for its image."""

    CAPTION = 0
    POSITIVE = 1
    NEGATIVE = 2


Ints = NDArray[Any]  # of any integer type, or bool
A = TypeVar("A", Ints, Tensor)
P = ParamSpec("P")


class Peers:
    """The processes that share a batch, each with some images and their texts; here only one.

    A loss is a sum over rows: an image against texts, a text against images. A process computes its
    rows against columns gathered from all processes, and divides by the rows of all. Its result is
    its share: the shares of all processes add up to the loss of the batch.

    Attributes:
        rank: Number of this process.
        world: Number of processes.
        calls: Number of calls of `sizes` so far.
    """

    rank = 0
    world = 1
    calls = 0

    def sizes(self, request: IndexRequest, local: Sequence[int]) -> NDArray[np.int64]:
        """Return the (n, world) lengths of the n arrays of a request; local: lengths here."""
        return np.array(local, np.int64)[:, None]

    def before(self, sizes: Ints) -> int:
        """Return the number of rows before this process's rows; sizes: (world,)."""
        return int(sizes[: self.rank].sum())

    def gathered(self, rows: Tensor, sizes: Ints) -> Tensor:
        """Return the (n, ...) rows of all processes, with gradients; sizes: (world,)."""
        return rows

    def summed(self, values: Tensor) -> Tensor:
        """Return the sum over all processes, without gradient."""
        return values.detach()

    def collected(self, arrays: Sequence[Ints]) -> list[Ints]:
        """Return arrays (n,) int64 of all processes on the host; lengths may differ."""
        return list(arrays)


ALONE = Peers()


@dataclass
class _Layout(Generic[A]):
    owner: A
    role: A
    rewrite: A
    images: int
    kinds: tuple[str, ...] = ()
    text_id: A | None = None
    image_id: A | None = None
    side: A | None = None
    pair: A | None = None

    def arrays(self) -> dict[str, A]:
        """Return the fields that are arrays, by name."""
        names = ("owner", "role", "rewrite", "text_id", "image_id", "side", "pair")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _part(self, keep: A) -> Self:
        """The layout of the texts `keep`."""
        of_texts = ("owner", "role", "rewrite", "text_id")
        parts: Any = {k: v[keep] for k, v in self.arrays().items() if k in of_texts}
        return replace(self, **parts)


@dataclass
class HostLayout(_Layout[Ints]):
    """The fields of a `Layout` as arrays on the host, where indices are computed.

    keys: (T,) and (B,) int64, equal in all processes for equal texts and, if known, equal photos.
    peers: the processes that share the batch. mask_duplicates: whether contrasts leave out true
    pairs other than the target (`true_pairs`). near_margin: they leave out captions and images of
    others whose cosine exceeds the target's by more than this; None for none.
    """

    keys: tuple[Ints, Ints | None] | None = None
    peers: Peers = ALONE
    mask_duplicates: bool = False
    near_margin: float | None = None

    def of(self, role: Role, *kinds: str) -> NDArray[np.int64]:
        """Return the texts of a role, and of these kinds if given, in order."""
        mask = self.role == int(role)
        return np.flatnonzero(mask & self.kind(*kinds) if kinds else mask)

    def kind(self, *names: str) -> NDArray[np.bool_]:
        """Return (T,) which texts are of these kinds; a kind may be absent from the batch."""
        return np.isin(self.rewrite, [i for i, name in enumerate(self.kinds) if name in names])

    def first(self, role: Role, *kinds: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return per image its first text of one role (and of these kinds, if any).

        (B,) indices into the texts (0 without one) and a (B,) mask.
        """
        position = self.of(role, *kinds)[::-1]
        index, valid = np.zeros(self.images, np.int64), np.zeros(self.images, bool)
        index[self.owner[position]] = position  # of several the last assignment stays
        valid[self.owner[position]] = True
        return index, valid

    def only(self, kinds: tuple[str, ...]) -> HostLayout:
        """Return the layout of the captions and of the other texts of these kinds."""
        (keep,) = _of_kinds(self, kinds)
        keys = None if self.keys is None else (self.keys[0][keep], self.keys[1])
        return replace(self._part(keep), keys=keys)

    def answer(self, request: IndexRequest) -> tuple[Ints, ...]:
        """Compute the arrays of a request."""
        host = self
        for kinds in request.only:
            host = host.only(kinds)
        return tuple(map(np.ascontiguousarray, request.make(host, *request.arguments)))

    def mapped(self, move: Callable[[Ints], Any]) -> HostLayout:
        """Return the same with every field that is an array moved, always in one order."""
        return replace(self, **{name: move(array) for name, array in self.arrays().items()})

    def layout(self, move: Callable[[Ints], Tensor]) -> Layout:
        """Return the layout with tensors, each `move` of an array."""
        tensors: dict[str, Any] = {name: move(array) for name, array in self.arrays().items()}
        layout = Layout(images=self.images, kinds=self.kinds, **tensors)
        layout.host = self
        return layout


class IndexRequest(NamedTuple):
    """Indices that a loss asks a layout for: `make(host, *arguments)`.

    make: a function of a module, so that workers can be sent the request. only: the kinds of text
    that are left, per selection, one inside the other.
    """

    make: Callable[..., tuple[Ints, ...]]
    arguments: tuple[Hashable, ...] = ()
    only: tuple[tuple[str, ...], ...] = ()


@dataclass
class Layout(_Layout[Tensor]):
    """How the T texts of a batch belong to its B images.

    Args:
        owner: (T,) int64, index of the image a text belongs to; one owner's texts need not be
            adjacent.
        role: (T,) int64, a `Role`.
        rewrite: (T,) int64, the kind of a text as an index into `kinds`; -1 for captions.
        images: B, all images of the batch, with those added by a method (neighbours, negative
            images). If several processes share a batch (`peers`), this process's part only.
        kinds: The names of the kinds of text (see `kind`).
        text_id: (T,) int64, equal exactly where two texts are equal after tokenisation, or None.
        image_id: (B,) int64, equal exactly where two images are the same photo, or None.
        side: (B,) int64, 0 for the images of the data, 1 for a row's generated negative image
            (TripletCLIP), or None. Neighbours of NegCLIP are ordinary images.
        pair: (B,) int64, for an image of side 1 the index of its row's image of side 0, for an
            image of side 0 its own index; None if every image is of side 0.

    Attributes:
        answers: The requested and the precomputed indices.
        unforeseen: Collects the requests that were not precomputed.
    """

    answers: dict[IndexRequest, tuple[Tensor, ...]] = field(default_factory=dict, init=False)
    unforeseen: set[IndexRequest] = field(default_factory=set, init=False)
    _of: Layout | None = field(default=None, init=False)
    _only: tuple[tuple[str, ...], ...] = field(default=(), init=False)

    def kind(self, *names: str) -> Tensor:
        """Return (T,) bool: which texts are of these kinds."""
        places = [place for place, name in enumerate(self.kinds) if name in names]
        return torch.isin(self.rewrite, self.rewrite.new_tensor(places))

    # Indices are computed on the host, where their number is known: on a device everything that
    # depends on it would have to wait for all work that is queued there.

    def indices(
        self, make: Callable[..., tuple[Ints, ...]], *arguments: Hashable, joint: bool = False
    ) -> tuple[Tensor, ...]:
        """Return indices (or masks) into the batch, computed on the host and only once.

        make: a module-level function of a `HostLayout` and the arguments. joint: whether it
        communicates with the other processes.
        """
        whole, request = self._of or self, IndexRequest(make, arguments, self._only)
        answer = whole.answers.get(request)
        if answer is None:
            # Workers cannot find a function that has no name, nor ask other processes.
            if "<" not in make.__qualname__ and not (joint and self.peers.world > 1):
                whole.unforeseen.add(request)
            arrays = whole.host.answer(request)
            answer = whole.answers[request] = tuple(map(self._moved, arrays))
        return answer

    def sizes(
        self, make: Callable[..., tuple[Ints, ...]], *arguments: Hashable
    ) -> NDArray[np.int64]:
        """Return the (n, world) lengths of n arrays of indices in every process."""
        local = [len(index) for index in self.indices(make, *arguments)]
        return self.peers.sizes(IndexRequest(make, arguments, self._only), local)

    def total(self, make: Callable[..., tuple[Ints, ...]], *arguments: Hashable) -> int:
        """Return the length of the first of these arrays over all processes."""
        return int(self.sizes(make, *arguments)[0].sum())

    @property
    def peers(self) -> Peers:
        """Return the processes that share the batch."""
        return self.whole.peers

    @property
    def whole(self) -> HostLayout:
        """Return the layout of the whole batch on the host; by default itself."""
        return (self._of or self).host

    def shared_by(
        self, peers: Peers, mask_duplicates: bool = False, near_margin: float | None = None
    ) -> Layout:
        """Mark this layout, in place, as a part of a batch shared with other processes."""
        self.host = replace(
            self.host, peers=peers, mask_duplicates=mask_duplicates, near_margin=near_margin
        )
        return self

    def only(self, kinds: tuple[str, ...]) -> tuple[Tensor, Layout]:
        """Return the indices of captions and of texts of these kinds, and their layout."""
        (keep,) = self.indices(_of_kinds, kinds)
        part = self._part(keep)
        part._of, part._only = self._of or self, (*self._only, kinds)
        return keep, part

    @cached_property
    def host(self) -> HostLayout:
        """The equal layout on the host; waits for the device if only that has the fields."""
        arrays: dict[str, Any] = {k: v.cpu().numpy() for k, v in self.arrays().items()}
        return HostLayout(images=self.images, kinds=self.kinds, **arrays)

    def _moved(self, array: Ints) -> Tensor:
        tensor = torch.from_numpy(array if array.dtype == bool else array.astype(np.int64))
        device = self.owner.device
        tensor = tensor.pin_memory() if device.type == "cuda" else tensor
        return tensor.to(device, non_blocking=device.type == "cuda")


def _of_kinds(host: HostLayout, kinds: tuple[str, ...]) -> tuple[Ints, ...]:
    return (np.flatnonzero((host.role == int(Role.CAPTION)) | host.kind(*kinds)),)


@dataclass(frozen=True)
class Features:
    """The encoder's features of a batch; all a loss may see. Not computed, a field is None.

    Args:
        image: (B, D) float32, unit length.
        text: (T, D) float32, unit length.
        logit_scale: Scalar, already exponentiated (s = exp(parameter)).
        patches: (B, P, D) projected image tokens without class token, not normalised.
        tokens: (T, L, D) projected text tokens, not normalised.
        token_mask: (T, L) bool, True for positions 1..EOT (start token and padding excluded).
        logit_bias: Scalar b of a model whose logits are s u . t + b (SigLIP), else None. With a
            bias, image-text contrasts over the batch are sigmoid losses of every pair, else
            softmaxes (`symmetric_contrast`). Losses that rank the texts of one image are always
            softmaxes: a bias cancels there.
        teacher_image: (B, D), the teacher's image features, without gradient.
        teacher_text: (T, D), the teacher's text features. D may differ from the model's.
        teacher_scale: The teacher's own s; None where it has none.
        text_state: (T, W) float32, the state of each text at EOT after the last LayerNorm, before
            the projection, not normalised; for heads.
        bank: (N, D) float32, unit length, images of the whole data as a frozen tower sees them.
        bank_keys: (2 N,) the halves of the key that `HostLayout.keys` gives to each photo.
        masked_image: (B, D) unit length, of the images with some patches masked (second pass).
        masked_text: (B, D), of the first caption of each image with words masked.
        masked_patches: (B, P, D) projected tokens of the masked images, not normalised.
        masked_tokens: (B, M, D) projected tokens of the masked captions, not normalised, M
            positions with the start of text.
        hidden_tokens: (n,) int64, masked positions in the flattened (B, M).
        hidden_ids: (n,) int64, the token ids at these positions.
        hidden_patches: (m,) int64, masked positions in the flattened (B, P).
        hidden_pixels: (m, p p 3) the pixels of these patches, each with mean 0 and variance 1.
    """

    image: Tensor
    text: Tensor
    logit_scale: Tensor
    patches: Tensor | None = None
    tokens: Tensor | None = None
    token_mask: Tensor | None = None
    logit_bias: Tensor | None = None
    teacher_image: Tensor | None = None
    teacher_text: Tensor | None = None
    teacher_scale: Tensor | None = None
    text_state: Tensor | None = None
    bank: Tensor | None = None
    bank_keys: Tensor | None = None
    masked_image: Tensor | None = None
    masked_text: Tensor | None = None
    masked_patches: Tensor | None = None
    masked_tokens: Tensor | None = None
    hidden_tokens: Tensor | None = None
    hidden_ids: Tensor | None = None
    hidden_patches: Tensor | None = None
    hidden_pixels: Tensor | None = None


def computed(features: Features, *names: str) -> list[Tensor]:
    """Return fields of the features. Raise ValueError for one that was not computed."""
    for name in names:
        if getattr(features, name) is None:
            raise ValueError(
                f"the loss reads Features.{name}, which was not computed: say in its LossTerm what "
                "it needs (needs_local, needs_patches, needs_teacher, needs_bank, extra)"
            )
    return [getattr(features, name) for name in names]


class Loss(Protocol):
    """A pure function of features and layout that returns a scalar, in at least float32.

    Masked logits are minus infinity. The loss is exactly zero, with zero gradient, if the batch has
    none of its texts. In a batch shared by several processes it gets this one's part and returns
    its share (`Peers`). Raises ValueError when features and layout do not fit, or when an image
    has no caption.
    """

    def __call__(self, features: Features, layout: Layout, /) -> Tensor: ...


@runtime_checkable
class StatefulLoss(Loss, Protocol):
    """A loss with a state between optimiser steps, equal in all processes; called once per step."""

    def state_dict(self) -> dict[str, float]:
        """Return the numbers by name; finite, and equal after a round trip through JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Resume from `state`; an empty mapping is the start of a run."""
        ...


class Head(Protocol):
    """A module that computes a loss with parameters outside of the model.

    It moves with the encoder, and its state is part of the training state.
    """

    def loss(self, features: Features, layout: Layout, targets: Sequence[str]) -> Tensor:
        """Return this process's share of the loss; targets: a text per image, "" for none."""
        ...


class TowerSizes(NamedTuple):
    """The sizes of a model that heads need.

    Attributes:
        text: W, the width of `Features.text_state` and of a token before the first layer.
        joint: D.
        vocabulary: Number of tokens.
        image: Width of a patch before the first layer; 0 if patches cannot be masked.
        patch: Number of values of a patch; 0 if patches cannot be masked.
    """

    text: int
    joint: int
    vocabulary: int
    image: int = 0
    patch: int = 0


class HeadPlan:
    """The plan of a `Head`, which a loss term has instead of a function.

    Attributes:
        lr_scale: The head's learning rate divided by the model's.
        lr: The head's peak learning rate; 0 uses `lr_scale`.
        weight_decay: Weight decay of the head; None is the model's.
    """

    lr_scale: float = 1.0
    lr: float = 0.0
    weight_decay: float | None = None

    def factor(self, lr: float) -> float:
        """Return the head's learning rate divided by the model's, whose peak is `lr`."""
        return self.lr / lr if self.lr and lr else self.lr_scale

    def build(self, sizes: TowerSizes, seed: int) -> torch.nn.Module:
        """Build the `Head` on the CPU with parameters initialised from `seed`."""
        raise NotImplementedError

    def record(self) -> dict[str, Any]:
        """Return the head's inputs except the seed, for checkpoints and signatures: its fields."""
        return dict(vars(self))

    def __call__(self, features: Features, layout: Layout) -> Tensor:
        """Raise TypeError: build the head and call its `loss`."""
        raise TypeError("a loss with parameters of its own is computed by its head (`build`)")


# --- Losses are computed in at least float32, whatever the encoder's precision. ---


def at_least_float32(x: Tensor) -> Tensor:
    """Return `x` as float32; float64, in which gradients are checked, stays float64."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@contextmanager
def full_precision(features: Features) -> Iterator[Features]:
    """Yield the features in at least float32, in a block without autocast.

    Autocast would turn the matrix products of a loss back into half precision: at s = 100 a
    bfloat16 logit is off by up to 0.25.
    """
    fields = vars(features).items()
    present = {k: v for k, v in fields if v is not None and v.is_floating_point()}
    with torch.autocast(device_type=features.image.device.type, enabled=False):
        yield replace(
            features, **{name: at_least_float32(tensor) for name, tensor in present.items()}
        )


def loss_function(
    loss: Callable[Concatenate[Features, Layout, P], Tensor],
) -> Callable[Concatenate[Features, Layout, P], Tensor]:
    """Decorate a loss: it gets features in full precision, and ValueError if they fit no layout."""

    @wraps(loss)
    def checked(
        features: Features, layout: Layout, /, *args: P.args, **options: P.kwargs
    ) -> Tensor:
        check(features, layout)
        with full_precision(features) as f:
            return loss(f, layout, *args, **options)

    return checked


def check(features: Features, layout: Layout) -> None:
    """Raise ValueError when features and layout do not describe the same batch."""
    images, texts = features.image.shape[0], features.text.shape[0]
    empty = images == 0 and layout.peers.world == 1
    if empty or images != layout.images:
        raise ValueError(f"{images} image features, but the layout has {layout.images}")
    if texts != layout.owner.numel():
        raise ValueError(f"{texts} text features, but the layout has {layout.owner.numel()}")


def normalise(x: Tensor) -> Tensor:
    """Divide `x` by its length along the last dimension; vectors shorter than 1e-12 become zero.

    Unlike that of `torch.nn.functional.normalize`, the gradient of such a vector is zero too.
    """
    return x * inverse_length(x.square().sum(-1, keepdim=True))


def inverse_length(square: Tensor) -> Tensor:
    """Return 1 over the length of a vector of squared length `square`; 0 below 1e-12."""
    tiny = square <= 1e-24
    return square.masked_fill(tiny, 1.0).rsqrt().masked_fill(tiny, 0.0)
