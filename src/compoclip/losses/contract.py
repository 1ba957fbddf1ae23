"""What a loss may see: features and batch layout, and nothing of text, files or configuration."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Role(IntEnum):
    """Why a text accompanies its image."""

    CAPTION = 0
    POSITIVE = 1
    NEGATIVE = 2


Ints = NDArray[Any]  # of any integer type, or bool


class Peers:
    """The processes that share a batch, each with images and their texts of its own; here only one.

    Losses are sums over rows: an image against texts, a text against images. A process computes the
    rows that are its own. Where these meet all images or texts of the batch, the columns are
    collected from all processes; and means are taken over the rows of all. So what a loss returns
    is this process's share, and the shares of all processes add up to the loss of the batch.

    Attributes:
        rank: Which of the processes this is.
        world: How many there are.
        asked: How often losses have asked for the sizes of parts.
    """

    rank: int = 0
    world: int = 1
    asked: int = 0

    def sizes(self, request: IndexRequest, own: Sequence[int]) -> NDArray[np.int64]:
        """The (n, world) lengths, in every process, of the n arrays that answer a request.

        own: their lengths in this process.
        """
        return np.array(own, np.int64)[:, None]

    def gathered(self, rows: Tensor, sizes: Ints) -> Tensor:
        """The (n, ...) rows of all processes below each other, with gradients.

        sizes: (world,) how many every process has.
        """
        return rows

    def summed(self, values: Tensor) -> Tensor:
        """The sum over all processes, without gradient."""
        return values.detach()

    def collected(self, arrays: Sequence[Ints]) -> list[Ints]:
        """Arrays (n,) int64 of all processes, on the host: as many in every process, of any
        length.
        """
        return list(arrays)


ALONE = Peers()


@dataclass(frozen=True)
class HostLayout:
    """The fields of a `Layout` as arrays of the host, which indices are computed from there.

    keys: what tells texts, and photos if they are known, apart in all processes, (T,) and (B,)
    int64. peers: the processes that share the batch. mask_duplicates: whether contrasts leave out
    pairs that are true without being the target (`true_pairs`).
    """

    owner: Ints
    role: Ints
    rewrite: Ints
    images: int
    kinds: tuple[str, ...] = ()
    text_id: Ints | None = None
    image_id: Ints | None = None
    side: Ints | None = None
    pair: Ints | None = None
    keys: tuple[Ints, Ints | None] | None = None
    peers: Peers = ALONE
    mask_duplicates: bool = False

    def of(self, role: Role, *kinds: str) -> NDArray[np.int64]:
        """The texts of a role, and of one of these kinds if any is named, in order."""
        found = self.role == int(role)
        return np.flatnonzero(found & self.kind(*kinds) if kinds else found)

    def kind(self, *names: str) -> NDArray[np.bool_]:
        """(T,) the texts of these kinds: none for a name that no text of the batch has."""
        return np.isin(self.rewrite, [i for i, name in enumerate(self.kinds) if name in names])

    def captions(self) -> NDArray[np.int64]:
        """(B,) the first caption of every image; 0 for an image without one."""
        position = self.of(Role.CAPTION)[::-1]
        index = np.zeros(self.images, np.int64)
        index[self.owner[position]] = position  # of several the last assignment stays
        return index

    def only(self, kinds: tuple[str, ...]) -> HostLayout:
        """The captions, and of the other texts those of these kinds."""
        keep = np.flatnonzero((self.role == int(Role.CAPTION)) | self.kind(*kinds))
        return replace(
            self,
            owner=self.owner[keep],
            role=self.role[keep],
            rewrite=self.rewrite[keep],
            text_id=None if self.text_id is None else self.text_id[keep],
            keys=None if self.keys is None else (self.keys[0][keep], self.keys[1]),
        )

    def answer(self, request: IndexRequest) -> tuple[Ints, ...]:
        """The arrays that a request asks for."""
        host = self
        for kinds in request.only:
            host = host.only(kinds)
        return tuple(map(np.ascontiguousarray, request.make(host, *request.arguments)))

    def arrays(self) -> dict[str, Ints]:
        """The fields that losses may read on a device and that are there, but for numbers."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def layout(self, move: Callable[[Ints], Tensor]) -> Layout:
        """The layout with tensors that `move` makes of the arrays."""
        tensors: dict[str, Any] = {name: move(array) for name, array in self.arrays().items()}
        return Layout(images=self.images, kinds=self.kinds, **tensors).known_as(self)


class IndexRequest(NamedTuple):
    """Indices that a loss asks a layout for: `make(host, *arguments)` of the part `only`.

    make: a function of a module, by which a request can be sent to other processes. only: the kinds
    of text that are left, for each selection one inside the other.
    """

    make: Callable[..., tuple[Ints, ...]]
    arguments: tuple[Hashable, ...] = ()
    only: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Layout:
    """How the T texts of a batch belong to its B images.

    Args:
        owner: (T,) int64, index of the image a text belongs to; one owner's texts need not be
            adjacent.
        role: (T,) int64, a `Role`.
        rewrite: (T,) int64, the kind of a text as an index into `kinds`; -1 for captions.
        images: B, all images of the batch, also those that a method adds (neighbours, negative
            images). Where several processes share a batch (`peers`), all is of this process's part.
        kinds: The names of the kinds of text, by which losses ask for them (`kind`).
        text_id: (T,) int64, equal exactly where two texts are equal after tokenisation, or None.
        image_id: (B,) int64, equal exactly where two images are the same photo, or None.
        side: (B,) int64, 0 for the images of the data, 1 for the generated negative image that a
            row brought along (TripletCLIP), or None. Neighbours of NegCLIP are ordinary images.
        pair: (B,) int64, for an image of side 1 the index of the image of side 0 that brought it
            along, for one of side 0 its own index, or None when every image is of side 0.
    """

    owner: Tensor
    role: Tensor
    rewrite: Tensor
    images: int
    kinds: tuple[str, ...] = ()
    text_id: Tensor | None = None
    image_id: Tensor | None = None
    side: Tensor | None = None
    pair: Tensor | None = None

    def kind(self, *names: str) -> Tensor:
        """(T,) bool, the texts of these kinds: none for a name that no text of the batch has."""
        wanted = [place for place, name in enumerate(self.kinds) if name in names]
        return torch.isin(self.rewrite, self.rewrite.new_tensor(wanted))

    # Indices are computed on the host, where their number is known: on a device everything that
    # depends on it would have to wait for all work that is queued there.

    def indices(
        self, make: Callable[..., tuple[Ints, ...]], *arguments: Hashable, joint: bool = False
    ) -> tuple[Tensor, ...]:
        """Indices (or masks) into the batch, computed on the host and only once.

        Args:
            make: Computes them of a `HostLayout` and the arguments; a function of a module.
            arguments: What else they depend on.
            joint: Whether it asks the other processes that share the batch.
        """
        whole, only = self._place
        request = IndexRequest(make, arguments, only)
        found = whole.answers.get(request)
        if found is None:
            # Workers cannot find a function that has no name, nor ask other processes.
            if "<" not in make.__qualname__ and not (joint and self.peers.world > 1):
                whole.unforeseen.add(request)
            arrays = whole.host.answer(request)
            found = whole.answers[request] = tuple(map(self._moved, arrays))
        return found

    def sizes(
        self, make: Callable[..., tuple[Ints, ...]], *arguments: Hashable
    ) -> NDArray[np.int64]:
        """The (n, world) lengths of n arrays of indices in each process that shares the batch."""
        own = [len(each) for each in self.indices(make, *arguments)]
        return self.peers.sizes(IndexRequest(make, arguments, self._place[1]), own)

    @property
    def peers(self) -> Peers:
        """The processes that share the batch."""
        return self.whole.peers

    @property
    def whole(self) -> HostLayout:
        """The layout that this one is a part of, by default itself, on the host."""
        return self._place[0].host

    def shared_by(self, peers: Peers, mask_duplicates: bool = False) -> Layout:
        """This layout as the part of a batch that other processes have parts of, too."""
        host = replace(self.host, peers=peers, mask_duplicates=mask_duplicates)
        return self.known_as(host)

    def only(self, kinds: tuple[str, ...]) -> tuple[Tensor, Layout]:
        """The captions, and of the other texts those of some kinds: their indices and layout."""
        (keep,) = self.indices(_kept, kinds)
        part = replace(
            self,
            owner=self.owner.index_select(0, keep),
            role=self.role.index_select(0, keep),
            rewrite=self.rewrite.index_select(0, keep),
            text_id=None if self.text_id is None else self.text_id.index_select(0, keep),
        )
        whole, only = self._place
        part.__dict__["_place"] = whole, (*only, kinds)
        return keep, part

    def known_as(self, host: HostLayout) -> Layout:
        """This layout, which the host has as well, so that no device needs to be asked for it."""
        self.__dict__["host"] = host
        return self

    @cached_property
    def host(self) -> HostLayout:
        """The fields on the host; waits for the device of a layout that was made there."""
        values: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            values[each.name] = value.cpu().numpy() if isinstance(value, Tensor) else value
        return HostLayout(**values)

    @cached_property
    def answers(self) -> dict[IndexRequest, tuple[Tensor, ...]]:
        """The indices that were asked for, or computed beforehand."""
        return {}

    @cached_property
    def unforeseen(self) -> set[IndexRequest]:
        """What was asked for without having been computed beforehand."""
        return set()

    def note_in(self, unforeseen: set[IndexRequest]) -> None:
        """Note in a set what is asked for without having been computed beforehand."""
        self.__dict__["unforeseen"] = unforeseen

    @cached_property
    def _place(self) -> tuple[Layout, tuple[tuple[str, ...], ...]]:
        """The layout this one is a part of, and which; by default itself."""
        return self, ()

    def _moved(self, array: Ints) -> Tensor:
        tensor = torch.from_numpy(array if array.dtype == bool else array.astype(np.int64))
        device = self.owner.device
        if device.type != "cuda":
            return tensor.to(device)
        return tensor.pin_memory().to(device, non_blocking=True)


def _kept(host: HostLayout, kinds: tuple[str, ...]) -> tuple[Ints, ...]:
    return (np.flatnonzero((host.role == int(Role.CAPTION)) | host.kind(*kinds)),)


@dataclass(frozen=True)
class Features:
    """What the encoder returns for a batch; all a loss may see.

    Args:
        image: (B, D) float32, unit length.
        text: (T, D) float32, unit length.
        logit_scale: Scalar, already exponentiated (s = exp(parameter)).
        patches: (B, P, D) projected image tokens without class token, not normalised, or None.
        tokens: (T, L, D) projected text tokens, not normalised, or None.
        token_mask: (T, L) bool, True for positions 1..EOT (start token and padding excluded), or
            None.
        logit_bias: Scalar b of a model whose logits are s u . t + b (SigLIP), or None. With it,
            contrasts of images with texts over the batch are sigmoid losses of every pair, without
            it softmaxes (`symmetric_contrast`). Losses that rank the texts of one image among
            themselves are softmaxes either way: a bias cancels there.
        teacher_image: (B, D) float32, unit length, what the teacher makes of the images, without
            gradient; None for a method without one.
        teacher_text: (T, D), the same of the texts.
        text_state: (T, W) float32, the state of each text at EOT after the last LayerNorm, before
            the projection, not normalised; None unless a head reads it.
        masked_image: (B, D) float32, unit length, of the images with some of their patches hidden;
            None unless a second pass was made, and without patches to hide.
        masked_text: (B, D), the same of the first caption of each image with words hidden.
        masked_patches: (B, P, D) projected tokens of the masked images, not normalised; None unless
            `patches` are there.
        masked_tokens: (B, M, D) projected tokens of the masked captions, not normalised, M
            positions with the start of text; None unless `tokens` are there.
        hidden_tokens: (n,) int64, the positions in (B, M), laid out flat, that were hidden.
        hidden_ids: (n,) int64, the tokens that stood there.
        hidden_patches: (m,) int64, the same of positions in (B, P).
        hidden_pixels: (m, p p 3) float32, the pixels that stood there, each patch with mean 0 and
            variance 1.
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
    text_state: Tensor | None = None
    masked_image: Tensor | None = None
    masked_text: Tensor | None = None
    masked_patches: Tensor | None = None
    masked_tokens: Tensor | None = None
    hidden_tokens: Tensor | None = None
    hidden_ids: Tensor | None = None
    hidden_patches: Tensor | None = None
    hidden_pixels: Tensor | None = None


class Loss(Protocol):
    """A pure function of features and layout that returns a scalar float32 tensor.

    Masks mean minus infinity. Defined (zero, with gradient) when the batch holds no negative. Of a
    batch that several processes share it sees this one's part, and returns its share (`Peers`).
    """

    def __call__(self, features: Features, layout: Layout) -> Tensor: ...


@runtime_checkable
class StatefulLoss(Loss, Protocol):
    """A loss that remembers numbers from one optimiser step to the next.

    Called exactly once a step. Its state belongs to the training state: a run that is resumed with
    it goes on as if nothing had happened. All processes have the same one.
    """

    def state_dict(self) -> dict[str, float]:
        """The numbers to keep, by name; finite, and equal after a round trip through JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from `state`; the empty mapping stands for the start of a run."""
        ...


class Head(Protocol):
    """Computes a loss by parameters of its own, which learn beside the model and do not join it.

    A module: it moves with the encoder, and its state is part of the training state.
    """

    def loss(self, features: Features, layout: Layout, targets: Sequence[str]) -> Tensor:
        """This process's share of the loss, a scalar float32 tensor.

        targets: a text for each of the B images, "" for none.
        """
        ...


class TowerSizes(NamedTuple):
    """What a head has to know of the model that it learns beside.

    Attributes:
        text: W, of `Features.text_state`, which is also that of a token before the first layer.
        joint: D.
        vocabulary: Number of tokens.
        image: Width of a patch before the first layer; 0 where patches cannot be hidden.
        patch: Numbers in the pixels of a patch; 0 there, too.
    """

    text: int
    joint: int
    vocabulary: int
    image: int = 0
    patch: int = 0


class HeadPlan:
    """What a loss term states in the place of a loss that is computed by a `Head`.

    Attributes:
        lr_scale: The head's learning rate over that of the model.
        lr: The head's peak learning rate, whatever that of the model; 0 leaves it to `lr_scale`.
        weight_decay: Of the head; None is that of the model.
    """

    lr_scale: float = 1.0
    lr: float = 0.0
    weight_decay: float | None = None

    def factor(self, lr: float) -> float:
        """What the model's learning rate, whose peak is `lr`, is multiplied by for the head."""
        return self.lr / lr if self.lr and lr else self.lr_scale

    def build(self, sizes: TowerSizes, seed: int) -> torch.nn.Module:
        """Make the head, a module that is a `Head`, on the CPU; `seed` is of its parameters."""
        raise NotImplementedError

    def record(self) -> dict[str, Any]:
        """What decides of the head beside the seed, for checkpoints and signatures."""
        raise NotImplementedError

    def __call__(self, features: Features, layout: Layout) -> Tensor:
        """Never: what is called is the head."""
        raise TypeError("a loss with parameters of its own is computed by its head (`build`)")


def first_captions(host: HostLayout) -> tuple[Ints, ...]:
    """Return the first caption of every image, for `Layout.indices`."""
    return (host.captions(),)


# --- Losses are computed in at least float32, whatever the encoder's precision. ---


def at_least_float32(x: Tensor) -> Tensor:
    """`x` as float32; float64 stays float64 (so that gradients can be checked in it)."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@contextmanager
def full_precision(features: Features) -> Iterator[Features]:
    """The features in at least float32, inside a block where autocast is off.

    Autocast would otherwise turn the matrix products of a loss back into half precision: at
    s = 100 a bfloat16 logit is off by up to 0.25.
    """
    given = vars(features).items()
    present = {k: v for k, v in given if v is not None and v.is_floating_point()}
    with torch.autocast(device_type=features.image.device.type, enabled=False):
        yield replace(features, **{name: at_least_float32(each) for name, each in present.items()})


def normalise(x: Tensor, eps: float = 1e-12) -> Tensor:
    """`x` divided by its length along the last dimension; vectors shorter than `eps` become zero.

    Unlike `torch.nn.functional.normalize` the gradient of such a vector is zero too, instead of
    1 / eps.
    """
    square = x.square().sum(-1, keepdim=True)
    tiny = square <= eps * eps
    return x * square.masked_fill(tiny, 1.0).rsqrt().masked_fill(tiny, 0.0)
