"""Matryoshka training: what is cut, runs that resume and are shared, evaluation of cut features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from compoclip.errors import UsageError
from compoclip.losses.dimensions import LeadingDimensions, leading
from compoclip.methods.registry import load_recipe
from compoclip.ranks import SINGLE, Ranks
from compoclip.training.step import on_dimensions
from distributed_runs import OPTIM, close, run, training, write_base
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


def matryoshka(ranks: Ranks, folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    return training(ranks, folder, name, matryoshka=(4, 8), **settings)


def test_a_run_resumes_and_is_shared(tmp_path: Path) -> None:
    folder = write_base(tmp_path)
    alone = matryoshka(SINGLE, folder, "one", {"stop_after": 4})["log"]
    plain = training(SINGLE, folder, "plain", stop_after=1)["log"]
    assert alone[0]["loss"] != pytest.approx(plain[0]["loss"], rel=1e-3)
    matryoshka(SINGLE, folder, "parts", {"stop_after": 2})
    resumed = matryoshka(SINGLE, folder, "parts", {"stop_after": 4, "resume": True})["log"]
    assert resumed == alone
    two = in_ranks(2, matryoshka, folder, "two", {"stop_after": 4})
    assert isinstance(two[0], dict), two[0]
    assert all(close(a, b) for a, b in zip(two[0]["log"], alone, strict=True))


@pytest.mark.parametrize("width", [0, 16])
def test_a_width_that_cuts_nothing_is_refused(tmp_path: Path, width: int) -> None:
    folder, method = write_base(tmp_path), load_recipe("clip-ft")(optim=OPTIM)
    data = folder / "data" / "data.tsv"
    with pytest.raises(UsageError, match=f"matryoshka={width}: must be 1 to 15"):
        run(SINGLE, folder, folder / "no", data, method, matryoshka=(8, width))
