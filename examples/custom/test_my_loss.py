"""Tests of my_loss.py. Run with: pytest test_my_loss.py"""

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.nn.functional import normalize

import compoclip
from compoclip.losses import Features, Layout, Role
from compoclip.methods import LossTerm, load_recipe
from compoclip.methods.compose import compose, loss_named

FILE = str(Path(__file__).with_name("my_loss.py"))
OWNERS, ROLES = [0, 1, 0, 0], [Role.CAPTION, Role.CAPTION, Role.NEGATIVE, Role.NEGATIVE]


def term() -> LossTerm:
    found = loss_named(FILE)
    assert found is not None
    return found


def batch(texts: int) -> tuple[Features, Layout]:
    """Return random features of two images and of the first texts, with gradients."""
    draw = torch.Generator().manual_seed(0)
    image = normalize(torch.randn(2, 8, generator=draw), dim=-1).requires_grad_()
    text = normalize(torch.randn(texts, 8, generator=draw), dim=-1).requires_grad_()
    owner, role = torch.tensor(OWNERS[:texts]), torch.tensor([int(r) for r in ROLES[:texts]])
    layout = Layout(owner, role, torch.full((texts,), -1), images=2)
    return Features(image, text, torch.tensor(10.0)), layout


def test_it_equals_a_plain_loop() -> None:
    features, layout = batch(4)
    score = (features.image @ features.text.T).tolist()
    gaps = [max(0.0, 0.2 - score[0][0] + score[0][k]) for k in (2, 3)]
    loss = term().loss(features, layout)
    assert abs(loss.item() - sum(gaps) / 2) < 1e-6
    (gradient,) = torch.autograd.grad(loss, features.image)
    assert gradient.isfinite().all()


def test_it_is_zero_without_a_negative() -> None:
    features, layout = batch(2)
    loss = term().loss(features, layout)
    assert loss.item() == 0
    torch.autograd.grad(loss, features.image)  # still has a gradient


def test_it_trains(tmp_path: Path) -> None:
    rows = ["image,caption"]
    for colour in ("red", "blue", "green", "white"):
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{colour}.png")
        rows.append(f"{colour}.png,a {colour} star above a black mug")
    data = tmp_path / "data.csv"
    data.write_text("\n".join(rows))
    few: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 4,
        "warmup": 0,
        "device": "cpu",
        "crop": False,
    }
    method = compose(load_recipe("negclip")(), terms=[f"+{FILE}"])
    tuned = compoclip.train("bundled", method, data, out=tmp_path / "run", **few)
    provenance = tuned.loaded.provenance
    assert provenance["run"]["steps"] == 2
    assert "my_loss.py" in provenance["sources"]  # --resume notices a changed file
