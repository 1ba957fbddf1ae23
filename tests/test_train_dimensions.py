"""Matryoshka training: what is cut, runs that resume and are shared, evaluation of cut features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from build.runs import close, training
from compoclip.errors import UsageError
from compoclip.losses.dimensions import LeadingDimensions, leading
from compoclip.methods.registry import load_recipe
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.step import on_dimensions
from losses_oracle import CASES, features_for, layout_of
from ranks_helpers import in_ranks


def test_only_the_shared_space_is_cut() -> None:
    whole = features_for(layout_of(CASES["ragged"]))
    cut = leading(whole, 3)
    torch.testing.assert_close(cut.image.norm(dim=-1), torch.ones(4).double())
    torch.testing.assert_close(cut.text[0] / cut.text[0, 0], whole.text[0, :3] / whole.text[0, 0])
    assert cut.patches is not None
    assert whole.patches is not None
    assert torch.equal(cut.patches, whole.patches[..., :3])
    assert cut.teacher_image is whole.teacher_image


def test_losses_with_a_state_or_a_head_stay_whole() -> None:
    whole = {
        f"{name}.{term.name}"
        for name in ("fsc-clip", "ce-clip", "macco", "dac", "degla")
        for term in on_dimensions(load_recipe(name)(), (4,)).losses
        if not isinstance(term.loss, LeadingDimensions)
    }
    assert whole == {"ce-clip.ranking", "macco.words", "macco.patches"}
    method = load_recipe("fsc-clip")()
    assert on_dimensions(method, ()) is method


def matryoshka(ranks: Ranks, folder: Path, out: str, settings: dict[str, Any]) -> Any:
    return training(ranks, folder, out, "negclip", matryoshka=(4, 8), **settings)["log"]


def test_a_run_resumes_and_is_shared(squares: Path) -> None:
    alone = matryoshka(SINGLE, squares, "one", {"stop_after": 4})
    plain = training(SINGLE, squares, "plain", "negclip", stop_after=1)["log"]
    assert alone[0]["loss"] != pytest.approx(plain[0]["loss"], rel=1e-3)
    matryoshka(SINGLE, squares, "parts", {"stop_after": 2})
    assert matryoshka(SINGLE, squares, "parts", {"stop_after": 4, "resume": True}) == alone
    shared = in_ranks(2, matryoshka, squares, "two", {"stop_after": 4})[0]
    assert isinstance(shared, list), shared
    assert all(close(a, b) for a, b in zip(shared, alone, strict=True))


@pytest.mark.parametrize("width", [0, 16])
def test_a_width_that_cuts_nothing_is_refused(squares: Path, width: int) -> None:
    with pytest.raises(UsageError, match=f"matryoshka={width}: must be 1 to 15"):
        training(SINGLE, squares, "no", "clip-ft", matryoshka=(8, width))
