"""The losses again, as plain loops over images, texts, tokens and patches, one scalar at a time.

Slow and obvious on purpose. Also makes the batches that the tests of the losses share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from compoclip.losses.contract import Features, Layout, Role

CAPTION, POSITIVE, NEGATIVE = Role.CAPTION, Role.POSITIVE, Role.NEGATIVE
NAMES = ("a", "b", "c", "d", "e", "f")  # of the kinds of text; cases have their places here
KINDS, POSITIVES = NAMES[:3], NAMES[3:]  # of negatives, and of positives


# One (owner, role, kind) a text; captions first unless the case says otherwise.
def _full(images: int) -> list[tuple[int, Role, int]]:
    own = [(i, NEGATIVE, k) for k in range(3) for i in range(images)]
    return [(i, CAPTION, -1) for i in range(images)] + own


CASES: dict[str, list[tuple[int, Role, int]]] = {
    "full": _full(4),
    "ragged": [(i, CAPTION, -1) for i in range(4)]
    + [(0, NEGATIVE, 0), (2, NEGATIVE, 0), (2, NEGATIVE, 1), (3, NEGATIVE, 1), (2, NEGATIVE, 2)],
    "no negative": [(i, CAPTION, -1) for i in range(4)],
    "one negative": [(i, CAPTION, -1) for i in range(4)] + [(2, NEGATIVE, 1)],
    "one type empty": [t for t in _full(4) if t[2] != 1],
    "one image": _full(1),
    "every role, any order": [
        (1, NEGATIVE, 2),
        (2, CAPTION, -1),
        (0, POSITIVE, 4),
        (0, CAPTION, -1),
        (1, CAPTION, -1),
        (0, NEGATIVE, 0),
        (1, CAPTION, -1),
        (2, POSITIVE, 3),
        (1, NEGATIVE, 0),
        (0, NEGATIVE, 0),
    ],
    "positives": [(i, CAPTION, -1) for i in range(4)]
    + [(i, POSITIVE, k) for k in (3, 4, 5) for i in (0, 1)]
    + [(3, POSITIVE, 4), (0, NEGATIVE, 0), (0, NEGATIVE, 1), (2, NEGATIVE, 1)],
    "bags": [(i, CAPTION, -1) for i in range(3)]
    + [(0, POSITIVE, 3)] * 3
    + [(0, NEGATIVE, 1)] * 2
    + [(0, NEGATIVE, 0), (1, POSITIVE, 3), (1, NEGATIVE, 0), (2, NEGATIVE, 1)],
}


def layout_of(texts: Sequence[tuple[int, Role, int]], kinds: tuple[str, ...] = NAMES) -> Layout:
    """The layout; some captions, negatives and images of it are the same text or photo."""
    owner, role, rewrite = (torch.tensor([int(t[i]) for t in texts]) for i in range(3))
    images = int(owner.max()) + 1
    text_id, image_id = torch.arange(len(texts)) % 11, torch.arange(images)
    return Layout(
        owner,
        role,
        rewrite,
        images,
        kinds,
        text_id=text_id.masked_fill(text_id == 2, 1),
        image_id=image_id.masked_fill(image_id == 3, 0),
    )


def features_for(
    layout: Layout,
    seed: int = 0,
    scale: float = 14.0,
    dim: int = 8,
    patches: int = 5,
    tokens: int = 6,
    dtype: torch.dtype = torch.float64,
) -> Features:
    """Random features, every tensor a leaf that wants gradient; text lengths from 1 to `tokens`."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    def leaf(x: Tensor) -> Tensor:
        return x.to(dtype).requires_grad_()

    count = layout.owner.numel()
    length = torch.randint(1, tokens + 1, (count,), generator=rng)
    length[0], length[-1] = tokens, 1
    return Features(
        image=leaf(torch.nn.functional.normalize(normal(layout.images, dim), dim=-1)),
        text=leaf(torch.nn.functional.normalize(normal(count, dim), dim=-1)),
        logit_scale=leaf(torch.tensor(scale)),
        patches=leaf(normal(layout.images, patches, dim)),
        tokens=leaf(normal(count, tokens, dim)),
        token_mask=torch.arange(tokens) < length[:, None],
        teacher_image=torch.nn.functional.normalize(normal(layout.images, dim), dim=-1).to(dtype),
        teacher_text=torch.nn.functional.normalize(normal(count, dim), dim=-1).to(dtype),
    )


LEAVES = ("image", "text", "logit_scale", "patches", "tokens")


def gradients(value: Tensor, features: Features) -> dict[str, Tensor]:
    """Gradient for every tensor of the features; zero where the loss does not read it."""
    leaves = [getattr(features, name) for name in LEAVES]
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for name, leaf, grad in zip(LEAVES, leaves, found)
    }


def assert_equal(
    ours: Callable[[Features, Layout], Tensor],
    loop: Callable[[Features, Layout], Tensor],
    layout: Layout,
    seed: int,
) -> None:
    """Compare a loss and its gradients with those of a loop, on random features."""
    f = features_for(layout, seed)
    value, expected = ours(f, layout), loop(f, layout)
    assert (value.dtype, value.shape) == (torch.float64, ())
    torch.testing.assert_close(value, expected, atol=1e-9, rtol=1e-9)
    got = gradients(value, f)
    wanted = gradients(expected, f) if expected.requires_grad else None
    for leaf in LEAVES:
        reference = wanted[leaf] if wanted else torch.zeros_like(got[leaf])
        torch.testing.assert_close(got[leaf], reference, atol=1e-8, rtol=1e-8, msg=leaf)


def rearranged(
    features: Features, layout: Layout, images: Tensor, texts: Tensor
) -> tuple[Features, Layout]:
    """The same batch with image `images[k]` at place k and text `texts[k]` at place k."""
    place = torch.argsort(images)

    def of(x: Tensor | None, order: Tensor) -> Tensor | None:
        return None if x is None else x[order]

    pair = of(layout.pair, images)
    return (
        Features(
            image=features.image[images],
            text=features.text[texts],
            logit_scale=features.logit_scale,
            patches=of(features.patches, images),
            tokens=of(features.tokens, texts),
            token_mask=of(features.token_mask, texts),
            teacher_image=of(features.teacher_image, images),
            teacher_text=of(features.teacher_text, texts),
        ),
        Layout(
            place[layout.owner[texts]],
            layout.role[texts],
            layout.rewrite[texts],
            layout.images,
            layout.kinds,
            text_id=of(layout.text_id, texts),
            image_id=of(layout.image_id, images),
            side=of(layout.side, images),
            pair=None if pair is None else place[pair],
        ),
    )


def with_dtype(features: Features, dtype: torch.dtype) -> Features:
    """A copy with fresh leaves of another precision."""
    return replace(
        features,
        **{n: getattr(features, n).detach().to(dtype).requires_grad_() for n in LEAVES},
        **{n: getattr(features, n).to(dtype) for n in ("teacher_image", "teacher_text")},
    )


def number(x: Tensor) -> float:
    return float(x.detach())


def lse(values: Sequence[Tensor]) -> Tensor:
    top = max(number(v) for v in values)
    return top + torch.log(sum((torch.exp(v - top) for v in values), torch.tensor(0.0).double()))


def cross_entropy(scores: Sequence[Tensor], target: int) -> Tensor:
    return lse(scores) - scores[target]


def caption_of(layout: Layout, image: int) -> int:
    for t, (owner, role) in enumerate(zip(layout.owner.tolist(), layout.role.tolist())):
        if owner == image and role == CAPTION:
            return t
    raise AssertionError("no caption")


def negatives_of(layout: Layout, image: int) -> list[int]:
    pairs = zip(layout.owner.tolist(), layout.role.tolist())
    return [t for t, (owner, role) in enumerate(pairs) if owner == image and role == NEGATIVE]


def missing_of(layout: Layout, image: int) -> int:
    made = {kind_of(layout, t) for t in negatives_of(layout, image)}
    return sum(kind not in made for kind in KINDS)


def kind_of(layout: Layout, text: int) -> str:
    return layout.kinds[int(layout.rewrite[text])]


def clip(f: Features, layout: Layout) -> Tensor:
    images = range(layout.images)
    total = torch.tensor(0.0).double()
    for i in images:
        to_text = [f.logit_scale * (f.image[i] @ f.text[caption_of(layout, j)]) for j in images]
        to_image = [f.logit_scale * (f.text[caption_of(layout, i)] @ f.image[j]) for j in images]
        total = total + cross_entropy(to_text, i) + cross_entropy(to_image, i)
    return total / (2 * layout.images)


def masking(
    loss: Callable[..., Tensor], on: bool = True, near: float | None = None
) -> Callable[..., Tensor]:
    """The loss on a layout that masks duplicates, and what is near by a margin."""

    def masked(f: Features, layout: Layout, *arguments: Any, **options: Any) -> Tensor:
        host = replace(layout.host, mask_duplicates=on, near_margin=near)
        whole = replace(layout)
        whole.host = host
        return loss(f, whole, *arguments, **options)

    return masked


def is_true(layout: Layout, image: int, text: int) -> bool:
    """Whether the text equals a caption or positive of an image that is the same photo."""
    assert layout.text_id is not None
    assert layout.image_id is not None
    for t in range(layout.owner.numel()):
        same_photo = layout.image_id[layout.owner[t]] == layout.image_id[image]
        same_text = layout.text_id[t] == layout.text_id[text]
        if layout.role[t] != NEGATIVE and same_photo and same_text:
            return True
    return False


def negclip(
    f: Features,
    layout: Layout,
    missing_hn: str = "mask",
    mask_duplicates: bool = False,
    near: float = math.inf,
) -> Tensor:
    images = range(layout.images)
    columns = [caption_of(layout, j) for j in images]
    columns += [t for j in images for t in negatives_of(layout, j)]
    phantoms = sum(missing_of(layout, j) for j in images) if missing_hn == "zero" else 0
    total = torch.tensor(0.0).double()
    for i in images:
        own = columns[i]
        most = number(global_score(f, i, own)) + near * number(f.logit_scale)

        def kept(image: int, text: int, target: bool, most: float = most) -> bool:
            if target or (mask_duplicates and is_true(layout, image, text)):
                return target
            made = layout.role[text] == NEGATIVE
            return bool(made) or number(global_score(f, image, text)) <= most

        to_text = [global_score(f, i, t) for t in columns if kept(i, t, t == own)]
        to_text += [torch.tensor(0.0).double()] * phantoms
        to_image = [global_score(f, j, own) for j in images if kept(j, own, j == i)]
        total = total + lse(to_text) + lse(to_image) - 2 * global_score(f, i, own)
    return total / (2 * layout.images)


def scr(
    f: Features,
    layout: Layout,
    score: Callable[[Features, int, int], Tensor],
    gamma: float,
    beta: float,
    reduction: str = "valid",
    missing_hn: str = "mask",
    positive_share: float = 0.0,
) -> Tensor:
    """Hard-negative loss; score(f, i, t) compares image i with text t."""
    total, rows = torch.tensor(0.0).double(), 0
    for i in range(layout.images):
        negatives = negatives_of(layout, i)
        if not negatives:
            continue
        rows += 1
        positives = [
            t
            for t in range(len(layout.owner))
            if layout.owner[t] == i and layout.role[t] == Role.POSITIVE and positive_share
        ]
        z = [score(f, i, t) for t in [caption_of(layout, i), *positives, *negatives]]
        phantoms = missing_of(layout, i) if missing_hn == "zero" else 0
        norm = lse(z + [torch.tensor(0.0).double()] * phantoms)
        for k, z_k in enumerate(z):
            y = beta / len(z)
            if k == 0:
                y += (1 - beta) * (1 - positive_share if positives else 1)
            elif k <= len(positives):
                y += (1 - beta) * positive_share / len(positives)
            p = torch.exp(z_k - norm)
            total = total - y * (1 - p) ** gamma * (z_k - norm)
    return total / max(1, rows if reduction == "valid" else layout.images)


def global_score(f: Features, i: int, t: int) -> Tensor:
    return f.logit_scale * (f.image[i] @ f.text[t])


def local_score(attention: str, attention_grad: bool) -> Callable[[Features, int, int], Tensor]:
    def score(f: Features, i: int, t: int) -> Tensor:
        assert f.tokens is not None
        assert f.patches is not None
        assert f.token_mask is not None
        v, terms = f.patches[i], []
        for w in range(f.tokens.shape[1]):
            if not f.token_mask[t, w]:
                continue
            token = f.tokens[t, w]
            sim = [token @ v[p] for p in range(len(v))]
            if not attention_grad:
                sim = [s.detach() for s in sim]
            low, high = (
                min(sim, key=lambda s: float(s.detach())),
                max(sim, key=lambda s: float(s.detach())),
            )
            if attention == "softmax":
                a = [torch.exp(s - lse(sim)) for s in sim]
            elif number(high - low) < 1e-6:
                a = [torch.tensor(1 / len(v)).double()] * len(v)
            else:
                a = [(s - low) / (high - low) for s in sim]
                if attention == "minmax_sparse":
                    a = [x if number(x) >= 1 / len(v) else 0 * x for x in a]
            pooled = sum(x * v[p] for p, x in enumerate(a)) / sum(a)
            assert isinstance(pooled, Tensor)
            cosine = (pooled @ token) / (pooled.norm() * token.norm())
            terms.append(f.logit_scale * cosine)
        return lse(terms)

    return score


def assert_no_signal(value: Tensor, read: Sequence[Tensor]) -> None:
    """Exactly +0, and connected to what the loss reads (else autograd raises)."""
    assert value.item() == 0.0
    assert math.copysign(1.0, value.item()) == 1.0
    for grad in torch.autograd.grad(value, read):
        assert not grad.any()
