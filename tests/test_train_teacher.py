"""A teacher beside the model: what it is at the start, how it follows, what a run keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from build.models import batch_for, take_step, trainable
from build.runs import CACHED, COLOURS, command, run, teacher_of
from compoclip.cli.main import main
from compoclip.data.batch import Batch
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.losses.contract import Features, Layout
from compoclip.losses.teacher import (
    feature_distillation,
    similarity_distillation,
)
from compoclip.methods.base import LossTerm, Method, Teacher, Trains
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import load_model
from compoclip.models.lora import Lora, attach_lora, merge_lora
from compoclip.ranks import SINGLE
from compoclip.training.loop import freeze
from compoclip.training.teacher import ExternalTeacher, TeacherEncoder
from losses_oracle import CAPTION, NEGATIVE
from train_helpers import OPTIM

DOUBLE = torch.float64


def test_the_mean_and_the_published_sum_agree_on_a_published_batch() -> None:
    method = load_recipe("degla")()
    summed = load_recipe("degla")(distill="sum")
    texts = torch.nn.functional.normalize(torch.randn(5 * 256, 4, dtype=DOUBLE), dim=-1)
    role = torch.tensor([int(CAPTION)] * 256 + [int(NEGATIVE)] * 1024)
    layout = Layout(torch.arange(256).repeat(5), role, role, 256)
    images = texts[:256]
    features = Features(
        images, texts, torch.tensor(1.0), teacher_image=images.flip(0), teacher_text=texts.flip(0)
    )
    mean, total = (m.losses[-1].loss(features, layout) for m in (method, summed))
    assert mean == pytest.approx(total)
    apart = (images - images.flip(0)).square().sum() + (texts - texts.flip(0)).square().sum()
    assert summed.losses[-1].weight * total == pytest.approx(0.005 * apart)


def test_without_terms_that_need_one_there_is_no_teacher() -> None:
    method = load_recipe("degla")(text_weight=0.0, distill_weight=0.0)
    assert not method.needs_teacher
    assert "teacher" not in method.record()
    assert load_recipe("degla")().record()["teacher"] == {"decay": 0.9996}


def test_a_teacher_comes_with_the_terms_that_need_it(tmp_path: Path) -> None:
    made = compose(load_recipe("fsc-clip")(), terms=["+degla.distill"])
    assert made.teacher == Teacher(0.9996)
    assert made.needs_teacher
    frozen = compose(made, settings=["teacher.decay=1"])
    assert frozen.teacher == Teacher(1.0)
    with pytest.raises(UsageError, match="already has a teacher"):
        compose(frozen, terms=["+degla.distill"])
    with pytest.raises(UsageError, match="must lie between 0 and 1"):
        compose(made, settings=["teacher.decay=2"])
    own = tmp_path / "near.py"
    own.write_text(
        "from compoclip.losses import feature_distillation\n"
        "from compoclip.methods import LossTerm\n"
        "NEAR = LossTerm('near', feature_distillation, needs_teacher=True)\n"
    )
    assert compose(load_recipe("clip-ft")(), terms=[f"+{own}"]).teacher == Teacher(1.0)
    plain = compose(load_recipe("fsc-clip")(), terms=["+degla.negclip"], texts=["+degla"])
    assert plain.teacher is None


# --- The network beside the model. ---


def moved(model: Any) -> None:
    """Another model, all of what learns in it a little elsewhere."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))


def looking(loss: Callable[[Features, Layout], Tensor]) -> Method:
    """A method of one loss that compares with a teacher."""
    return replace(load_recipe("clip-ft")(), losses=(LossTerm("near", loss, needs_teacher=True),))


@pytest.mark.parametrize("micro_batch", [0, 2])
def test_at_the_start_nothing_is_apart(micro_batch: int) -> None:
    model = trainable()
    model.encoder.teacher = TeacherEncoder(model.encoder, 0.9996)
    method = looking(feature_distillation)
    assert take_step(model, method, micro_batch=micro_batch).total == 0.0
    network = model.encoder.model
    assert not any(p.grad.any() for p in network.parameters() if p.grad is not None)
    assert all(p.grad is None for p in model.encoder.teacher.parameters())
    moved(network)
    assert take_step(model, method, micro_batch=micro_batch).total > 1e-4


def test_it_follows_as_the_closed_form_says() -> None:
    model, decay, steps = trainable(), 0.9, 7
    teacher = TeacherEncoder(model.encoder, decay)
    start = {n: p.clone() for n, p in teacher.model.named_parameters()}
    moved(model.encoder.model)
    for _ in range(steps):
        teacher.follow(model.encoder)
    for name, value in teacher.model.named_parameters():
        end = model.encoder.model.get_parameter(name)
        expected = decay**steps * start[name] + (1 - decay**steps) * end
        torch.testing.assert_close(value, expected, msg=name)
    assert "logit_scale" in start
    frozen = TeacherEncoder(model.encoder, 1.0)
    before = {n: p.clone() for n, p in frozen.model.named_parameters()}
    moved(model.encoder.model)
    frozen.follow(model.encoder)
    assert all(torch.equal(p, before[n]) for n, p in frozen.model.named_parameters())


@pytest.mark.parametrize("init", ["zero", "xavier_ab"])
def test_with_adapters_it_starts_from_the_start_weights_and_follows_the_merged(init: Any) -> None:
    model = trainable()
    attach_lora(model.encoder.model, Lora(init=init))
    freeze(model.encoder.model, Trains())
    teacher = TeacherEncoder(model.encoder, 0.5)
    start = {n: p.clone() for n, p in teacher.model.named_parameters()}
    moved(model.encoder.model)
    teacher.follow(model.encoder)
    merge_lora(model.encoder.model)
    changed = 0
    for name, value in teacher.model.named_parameters():
        end = model.encoder.model.get_parameter(name)
        torch.testing.assert_close(value, (start[name] + end) / 2, msg=name)
        changed += not torch.equal(start[name], end)
    assert changed == len(list(start)) - sum(
        torch.equal(start[n], p) for n, p in model.encoder.model.named_parameters()
    )
    assert changed > 4


def test_a_frozen_tower_is_not_encoded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trainable()
    freeze(model.encoder.model, Trains(image_tower=False))
    model.encoder.teacher = TeacherEncoder(model.encoder, 0.9)
    model.encoder.train()

    def never(*_: object) -> None:
        raise AssertionError("encoded")

    monkeypatch.setattr(model.encoder.teacher.image_tower, "_encode", never)
    seen: list[Features] = []

    def look(features: Features, layout: Layout) -> Tensor:
        seen.append(features)
        return feature_distillation(features, layout)

    take_step(model, looking(look))
    assert seen[0].teacher_image is not None
    assert torch.equal(seen[0].teacher_image, seen[0].image)
    assert not seen[0].teacher_image.requires_grad


# --- Runs. ---


def colours(folder: Path, code: str) -> Path:
    """Write the file of a teacher of four numbers; the model has 16."""
    file = folder / "colours.py"
    file.write_text(code)
    return file


def similar(recipe: str = "negclip") -> Method:
    return compose(load_recipe(recipe)(optim=OPTIM), terms=["+similarity"])


def test_another_teacher_is_another_run(squares: Path) -> None:
    teacher = colours(squares, COLOURS)
    run(SINGLE, squares, "run", similar(), teacher=teacher, stop_after=1)
    teacher.write_text(COLOURS.replace("200.0", "100.0"))
    with pytest.raises(CompoclipError, match="made with other settings: teacher"):
        run(SINGLE, squares, "run", similar(), teacher=teacher, resume=True)


def test_it_sees_the_pixels_and_the_texts_of_the_batch(tmp_path: Path) -> None:
    model, batch, seen = trainable(), batch_for(trainable()), []

    def look(features: Features, layout: Layout) -> Tensor:
        seen.append(features)
        return similarity_distillation(features, layout)

    teacher = teacher_of(colours(tmp_path, COLOURS))
    model.encoder.teacher = teacher
    take_step(model, looking(look), batch)
    texts = teacher.model.texts(batch.texts)
    assert torch.equal(seen[0].teacher_text, torch.from_numpy(texts))
    means = F.pad(batch.pixels.double().mean((2, 3)), (0, 1), value=9.0)
    expected = F.normalize(means, dim=1).float()
    torch.testing.assert_close(seen[0].teacher_image, expected)
    assert seen[0].teacher_scale is None
    # A rank without images encodes a stand-in, so that all have the same width.
    empty = Batch(batch.pixels[:0], (), (), (), ())
    assert teacher.add_to(seen[0], empty, 0).teacher_image.shape == (1, 4)
    dual = ExternalTeacher(ModelEncoder(trainable()), {"model": "m"})
    features = dual.add_to(seen[0], batch, 2)
    assert features.teacher_scale == pytest.approx(
        float(trainable().encoder.logit_scale.detach().exp())
    )


def test_a_term_and_its_teacher_fit(squares: Path) -> None:
    plain, near = load_recipe("clip-ft")(optim=OPTIM), similar("clip-ft")
    bare = replace(load_recipe("degla")(optim=OPTIM), teacher=None)
    distilled = compose(plain, terms=["+degla.distill"])
    teacher = colours(squares, COLOURS)
    split = squares / "split.py"
    split.write_text(COLOURS.replace(", 9.0] for each", "] for each"))
    for method, settings, words in (
        (plain, {"teacher": teacher}, "no term that compares with a teacher: add --terms"),
        (near, {"teacher": teacher, **CACHED}, "--cache-frozen stores no pixels"),
        (distilled, {"teacher": teacher}, "4 dimensions and the model's have 16: .*similarity"),
        (near, {"teacher": split}, r"split\.py: features of images have 3 dimensions"),
        (bare, {}, "need a teacher, but it has no teacher"),
    ):
        with pytest.raises(CompoclipError, match=words) as raised:
            run(SINGLE, squares, "run", method, **settings)
        assert isinstance(raised.value, UsageError) == (settings != {"teacher": split})


def test_the_command_names_any_model(
    squares: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(squares)
    Path("colours.py").write_text(COLOURS)
    for name in ("./colours.py", "base"):
        options = ("--terms", "+similarity", "--max-steps", "2", "--set", f"teacher={name}")
        assert main(command(squares, Path(name).stem + "-run", *options, method="negclip")) == 0
        teacher = load_model(f"{Path(name).stem}-run/model").provenance["teacher"]
        assert teacher["model"] == name
        assert teacher["weights"]
    assert "no loss term reads" not in capsys.readouterr().err
