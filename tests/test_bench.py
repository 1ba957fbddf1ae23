"""`python -m bench`: the harness, and that stages count and compare the same thing both ways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench import data, serve, text, train
from bench.__main__ import main
from bench.cost import count_operations
from bench.evaluate import economies, encoding_seconds
from bench.harness import Row, shown
from bench.host import PARTS, PREAMBLE, Operations, StepTimes, train_steps
from bench.made import caption_batch, photo_like, write_samples
from bench.memory import SavedBytes, count_step_memory
from bench.retrieval import class_weights, ranks
from compoclip.benchmarks.case import Benchmark, Case, Classification, Form, Retrieval
from compoclip.data.batch import Batch
from compoclip.data.sources.open import open_source
from compoclip.data.transform import ImageTransform
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encode import EncodeOptions
from compoclip.methods.base import Method, Optim, Trains
from compoclip.methods.registry import load_recipe
from compoclip.models.checkpoint import LoadedModel, create_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.preprocess import Preprocess
from compoclip.training import loop
from compoclip.training.loop import freeze
from compoclip.training.settings import RunSettings
from compoclip.training.step import step
from compoclip_world.export.suite import write_suite
from evaluation_helpers import FakeEncoder, photos
from models_thin import config, token_ids

CAPTIONS = [
    "a red cat on a small mat",
    "dogs",  # nothing to swap
    "a man beside a black horse under a tree",
    "a red cat on a small mat",
    "two blue birds and a white dog",
]
SETTINGS = RunSettings(out=Path(), mask_duplicates=False)
Made = tuple[LoadedModel, Method, Batch]


@pytest.fixture
def fsc() -> Made:
    """A thin model, FSC-CLIP, and a batch of its texts."""
    loaded, method = model(), load_recipe("fsc-clip")()
    return loaded, method, caption_batch(loaded, method, CAPTIONS, seed=0)


def model(**text: Any) -> LoadedModel:
    cfg = config(text={"vocab_size": 49408, "context_length": 32, **text})
    return create_model(ModelConfig(cfg), seed=1)


# --- The harness. ---

FAST = Row("things/s", 300.0, 100.0, "slow way", target=2.5)
SLOW = Row("more/s", 9.0, target=10.0, limit="no reference")
MISSED = Row("images/s", 9.123, target=10, of="ours", limit="decoding")


def test_a_target_is_met_missed_or_cannot_be_told() -> None:
    assert [row.met for row in (FAST, SLOW, MISSED, Row("y", 1.0))] == [True, None, False, None]
    less, given = Row("s", 2.0, 6.0, less=True), Row("s", 2.0, 6.0, times=5.0)
    assert [row.ratio for row in (FAST, less, given)] == [3.0, 3.0, 5.0]
    lines = shown([("one", FAST), ("two", SLOW), ("two", MISSED)]).splitlines()
    assert lines[2].split()[-7:] == ["100", "300", "3", "ratio", ">=", "2.5", "met"]
    assert lines[4].split()[-5:] == ["9.12", "ours", ">=", "10", "missed"]
    assert lines[-1] == "two, images/s: decoding"


@dataclass(frozen=True)
class Asked:
    """A stage.

    Args:
        captions: Captions.
        repeats: Repeats.
    """

    captions: Path | None = None
    repeats: int = 3


def test_all_goes_on_past_a_stage_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Asked, Path]] = []

    def good(options: Asked, folder: Path) -> list[Row]:
        assert folder.is_dir()
        seen.append((options, folder))
        return [FAST]

    def bad(options: Asked, folder: Path) -> list[Row]:
        raise CompoclipError("no such thing; get it")

    modules = {
        f"bench.{name}": SimpleNamespace(Options=Asked, QUICK=("--repeats=1",), measure=measure)
        for name, measure in (("text", good), ("parse", bad))
    }
    monkeypatch.setattr("bench.harness.import_module", modules.__getitem__)
    captions = tmp_path / "c.txt"
    words = ["all", "--quick", "--only", "parse", "text", "--captions", str(captions)]
    assert main([*words, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["failed"] == {"parse": "no such thing; get it"}
    assert [(row["bench"], row["ratio"]) for row in result["rows"]] == [("text", 3.0)]
    assert result["setting"]["quick"] is True
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "parse: could not be measured: no such thing; get it" in out
    assert "slow way" in out
    assert seen[0][0] == Asked(captions, 1)
    assert not seen[0][1].exists()
    assert main(["all", "--only", "nothing"]) == 2
    assert main(["parse"]) == 1
    assert main(["--help"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "quantities"),
    [
        ("parse --repeats=1", "tags|noun chunks|scene graphs|all, cold|all, warm"),
        (
            "captions --repeats=1 --rewrites=negclip,synonym",
            "rewrites of stored parses|5 epochs at once|stored parses read",
        ),
        ("cost compo --batch-size=2", "fsc-clip, |compo, "),
        (
            "data --count=4 --size=32 --workers=1 --batch-size=2 --repeats=1 --texts=9",
            "from pack, images/CPU|originals, --no-draft: decode|pack, 1 workers|on disk",
        ),
        ("evaluate --items=2 --images=4 --texts=20", "all together|1,000 images"),
        ("host --batch-size=8 --few=4 --steps=6", "batches brought|losses|in bfloat16"),
        ("memory --batch-size=8 --micro-batch=2 --grad-checkpointing", "at the peak|weights"),
        (
            "retrieval --images=20 --texts=100 --classes=2 --templates=2",
            "share of equal ranks|4 prompts, 4 distinct, CPU seconds|largest difference",
        ),
        ("text --batch-size=2 --repeats=1 --device=cpu", "captions/s|equal texts once"),
        ("train --batch-size=5 --repeats=1 --device=cpu", "images/s|TFLOP|of gradients"),
    ],
)
def test_every_stage_gives_rows(
    words: str,
    quantities: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("bench.evaluate.write_suite", partial(write_suite, benchmarks=("aro",)))
    monkeypatch.setattr("bench.host.write_samples", partial(write_samples, photos=2))
    monkeypatch.setattr("bench.host.drawn_captions", lambda *_: CAPTIONS * 12)
    save_model(model(), tmp_path / "model")
    (tmp_path / "c.txt").write_text("\n".join(CAPTIONS * 2))
    inputs = {"captions": tmp_path / "c.txt", "model": tmp_path / "model"}
    options = import_module(f"bench.{words.split()[0]}").Options
    given = [f"--{name}={path}" for name, path in inputs.items() if hasattr(options, name)]
    assert main([*words.split(), *given, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    measured = [row["what"] for row in result["rows"]]
    for quantity in quantities.split("|"):
        assert any(quantity in what for what in measured), (quantity, measured)
    assert all(row["ours"] >= 0 for row in result["rows"])
    assert result["setting"]["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("text --captions=c.txt", "1 caption, fewer than the 512 asked for"),
        ("text --batch-size=0", "--batch-size must be at least 2"),
        ("text --repeats=0", "--repeats must be at least 1"),
        ("memory --micro-batch=-1", "--micro-batch must be at least 0"),
        ("serve --clients=0", "at least 1"),
        ("host --few=1", "--few must be at least 2"),
        ("retrieval --images=5 --texts=4", "--texts must be at least --images"),
        ("captions --captions=c.txt --rewrites magic", "magic"),
        ("evaluate --on no-such-thing", "no-such-thing"),
        ("peers --repeats=0", "repeats"),
        ("peers --photos=0", "--photos must be at least 1"),
        ("peers --tools juggler", "no peer 'juggler'"),
        ("peers --real nowhere", "nowhere/photos/flickr8k: no such folder"),
        ("scale --most=10", "--most must be at least --fewest"),
        ("scale --minutes=0", "minutes"),
        ("scale --fewest=0", "--fewest must be at least 1"),
        ("scale --resume", "--resume needs --out"),
        ("nothing", "known: captions, cost, data, evaluate"),
        ("", ""),
    ],
)
def test_bad_requests_exit_2(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.txt").write_text("one\n")
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err


# --- A training step. ---


@pytest.mark.parametrize(
    ("way", "changes"), [(train.plain_step, {}), (train.released_step, {"missing_hn": "zero"})]
)
def test_the_other_ways_compute_the_same(way: Any, changes: dict[str, Any]) -> None:
    """The released form has scores of 0 in the place of negatives that do not exist."""
    loaded, method = model(), load_recipe("fsc-clip")(**changes)
    batch = caption_batch(loaded, method, CAPTIONS, seed=0)
    assert len(batch.texts) < 4 * len(CAPTIONS)  # something is lacking
    freeze(loaded.encoder.model, method.trains)
    results, gradients = [], []
    for function in (step, way):
        loaded.encoder.zero_grad(set_to_none=True)
        results.append(function(loaded.encoder, loaded.tokenizer, method, batch, SETTINGS))
        gradients.append([p.grad for p in loaded.encoder.parameters()])
    assert results[0].numbers() == pytest.approx(results[1].numbers(), abs=1e-5)
    for ours, other in zip(*gradients):
        assert (ours - other).abs().max() <= 1e-4 * max(1.0, other.abs().max())


def test_speed_counts_positions_and_operations(fsc: Made) -> None:
    loaded, method, batch = fsc
    rows = train.step_rows(loaded, method, batch, 1, SETTINGS)
    assert [row.what for row in rows[:2]] == ["FSC-CLIP step, batch 5, images/s"] * 2
    assert all(row.ratio > 0 for row in rows[:2])
    texts = len(batch.texts)
    by_name = {(row.what, row.against[:4]): row for row in rows}
    positions, released = (by_name["a step, positions", way] for way in ("full", "the "))
    assert (positions.baseline, released.baseline) == (20 * 32, texts * 32)
    tokens = texts * by_name["tokens a text", ""].ours
    assert positions.ours < tokens < 20 * 32  # the repeated caption is encoded once
    plain, other = (by_name["a step, TFLOP", way] for way in ("full", "the "))
    assert plain.ours < other.baseline < plain.baseline
    assert by_name["negatives that could not be made", ""].ours == 20 - texts
    assert by_name["difference of losses", ""].ours < 1e-5
    assert by_name["difference of gradients, of their largest entry", ""].ours < 1e-4


def test_what_operations_keep_is_counted_once() -> None:
    x = torch.randn(10, 4, requires_grad=True)
    weight = torch.randn(4, 4, requires_grad=True)
    known = {x.untyped_storage().data_ptr(), weight.untyped_storage().data_ptr()}
    with SavedBytes(known) as saved:
        y = x @ weight  # keeps x and weight, which are known
        z = y.exp()  # keeps its result
        out = z * z  # keeps z again
    assert saved.bytes == 4 * 40
    with SavedBytes() as everything:
        again = x @ weight
    assert everything.bytes == 4 * (40 + 16)
    del out, again


def test_memory_is_that_of_a_micro_batch(fsc: Made) -> None:
    loaded, method, _ = fsc
    batch = caption_batch(loaded, method, CAPTIONS * 4, seed=0)
    numbers = sum(p.numel() for p in loaded.encoder.parameters())
    plain_and_recomputed = []
    for recompute in (False, True):
        loaded.encoder.set_grad_checkpointing(recompute)
        two, four, everything = (
            count_step_memory(loaded, method, batch, RunSettings(out=Path(), micro_batch=size))
            for size in (2, 4, 0)
        )
        assert two["gradients"] == 4 * numbers
        assert two["moments of AdamW"] == 8 * numbers
        assert two["images of the batch"] == 5 * batch.pixels.numel()
        images, texts = (f"kept for a micro-batch of {what}" for what in ("images", "texts"))
        assert 1.9 < four[images] / two[images] < 2.1
        assert two[texts] < four[texts] < everything[texts]
        assert two["peak"] < everything["peak"] == everything["whole"]
        assert two["whole"] == pytest.approx(everything["whole"], rel=0.1)
        assert loaded.encoder.recomputes is recompute
        plain_and_recomputed.append(four)
    plain, recomputed = plain_and_recomputed
    assert recomputed[images] < plain[images]
    assert recomputed[texts] < plain[texts]


def test_operations_of_a_step_are_counted_with_the_teachers() -> None:
    def count(name: str, settings: Any = None, **changes: Any) -> tuple[float, float]:
        method = replace(load_recipe(name)(**(settings or {})), **changes)
        return count_operations(model(), method, CAPTIONS)

    plain, negatives, compo = map(count, ("clip-ft", "negclip", "compo"))
    assert plain[1] == 1.0 < negatives[1] < compo[1]
    assert negatives[0] > plain[0]
    # The same step, but for what holds the text tower: only the teacher is gone.
    free = count("compo", {"distill_weight": 0.0})
    assert free[1] == compo[1]
    assert free[0] < compo[0]
    whole = count("compo", trains=Trains())
    assert whole[0] > compo[0]  # the image tower is passed through backwards, too
    with pytest.raises(UsageError, match="composes images"):
        count("clic")


def test_every_part_of_a_step_is_timed_once(tmp_path: Path) -> None:
    ticks = iter(range(10_000))
    drained: list[int] = []
    entered: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    path = write_samples(tmp_path, ["a red cat on a mat", "a dog beside a blue car"] * 4, 2, 48)
    method = load_recipe("fsc-clip")(optim=Optim(batch_size=4, epochs=1))
    times = StepTimes(lambda: float(next(ticks)), lambda: drained.append(1), {1: around})
    before = loop.step_if_finite
    train_steps(model(), method, path, RunSettings(out=Path(), stop_after=4), times)
    assert loop.step_if_finite is before
    assert entered == ["in", "out"]
    assert len(times.steps) == 4
    parts = times.median(2)
    # A clock that goes one further each time it is asked: once around each part, which is asked for
    # once a step (the last step takes no batch).
    for part in PARTS:
        assert part in ("rest", "take") or parts[part] == 1, part
    assert times.steps[0]["take"] == times.steps[2]["take"] == 1
    assert "take" not in times.steps[3] or times.steps[3]["take"] == 0
    assert parts["step"] == pytest.approx(sum(parts[part] for part in PARTS), abs=1)
    assert len(drained) > 4 * 2 * len(PREAMBLE)


def test_operations_are_those_of_both_passes_without_views() -> None:
    x = torch.ones(4, requires_grad=True)
    with Operations() as operations:
        y = x.view(2, 2).to(torch.bfloat16)
        y.float().sum().backward()
    assert operations.casts == 4  # there and back, each way
    assert operations.found["aten::view"] == 0
    assert operations.found["aten::sum"] == 1


# --- Texts. ---


def test_operations_are_those_of_the_matrix_products() -> None:
    tower = create_model(ModelConfig(config(text={"vocab_size": 49408}))).encoder.model
    ids = token_ids([9, 9, 9], context=9)
    plain = sdpa_kernel(SDPBackend.MATH)  # older counters pass over fused attention on the CPU
    with plain, FlopCounterMode(display=False) as counter, torch.enable_grad():
        tower.encode_text(torch.nn.functional.pad(ids, (0, 11)))
    ours = text.tower_operations([(3, 20)], 60, width=32, layers=3, mlp_width=128, out=24)
    assert counter.get_total_flops() == ours


def test_counts_and_equality_on_a_thin_model() -> None:
    batches = [["a cat", "a cat", "a red cat on a mat"], ["a dog"]]
    rows = text.text_rows(model(context_length=20), batches, repeats=2)
    _, positions, work, difference, _, once, _, differs = rows
    assert positions.baseline == 4 * 20
    assert positions.ours == 4 + 4 + 8 + 4  # real tokens
    assert once.ours == positions.ours - 4 - 2  # a text, and the beginning of another
    assert work.ours < work.baseline
    assert max(difference.ours, differs.ours) < 1e-5
    with pytest.raises(CompoclipError, match="nothing to compare"):
        text.text_rows(model(no_causal_mask=True), [["a"]], repeats=1)


# --- Images. ---


def test_made_photos_have_detail_at_every_scale() -> None:
    one = np.asarray(photo_like(1, 160, 120), float).mean(-1)
    assert one.shape == (120, 160)
    assert np.array_equal(one, np.asarray(photo_like(1, 160, 120), float).mean(-1))
    assert not np.array_equal(one, np.asarray(photo_like(2, 160, 120), float).mean(-1))
    power = np.abs(np.fft.rfft2(one - one.mean())) ** 2
    assert power[:8, :8].mean() > 30 * power[40:60, 40:60].mean() > 0


def test_every_part_of_reading_is_timed(tmp_path: Path) -> None:
    source = open_source(write_samples(tmp_path, CAPTIONS[:4], size=96))
    small = Preprocess(size=(32, 32))
    transform = ImageTransform(small)
    ms, sent = data.our_speed(source, transform, 1)
    assert set(ms) == set(data.STAGES)
    assert sum(ms.values()) > 0 < data.plain_speed(source, small, 1)
    assert sent == 3 * 32 * 32
    assert data.PlainPhotos(source, small)[0].shape == (3, 32, 32)
    for plain in (False, True):
        assert data.loader_speed(source, transform, 2, 0, plain) > 0


# --- Evaluation and serving. ---


def test_both_ways_of_ranking_agree_and_one_holds_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compoclip.evaluation.forms.retrieval.SCORES_AT_ONCE", 1 << 13)
    _, memory, equal = ranks(60, 301, width=16)
    assert equal.ours == 1.0
    assert memory.ratio > 1


def test_class_weights_are_those_of_open_clip() -> None:
    thin = model()
    thin.encoder.eval()
    templates = [lambda name: f"a {name}.", lambda name: f"the {name}.", lambda name: f"a {name}."]
    seconds, difference = class_weights(thin, ["cat", "dog", "red cup"], templates)
    assert "9 prompts, 6 distinct" in seconds.what
    assert difference.ours < 1e-5


def test_encodings_are_those_of_a_loop(tmp_path: Path) -> None:
    refs = photos(tmp_path, ["a", "b", "c"])
    (tmp_path / "c.jpg").write_bytes((tmp_path / "a.jpg").read_bytes())  # a copy
    cases = (
        Case("1", Form.CHOOSE_TEXT, (refs["a"],), ("x", "X"), "s"),
        Case("2", Form.CHOOSE_TEXT, (refs["a"],), ("x", "y"), "s"),
        Case("3", Form.GROUP, (refs["b"], refs["c"]), ("y", "z"), "s"),
    )
    pairs = Retrieval((refs["a"], refs["b"]), ("x", "w"), ((0, 0), (1, 1)))
    classes = Classification((refs["b"],), (0,), ("k", "l"), (("w", "v"), ("u", "x")))
    contents = {"cases": cases, "pairs": pairs, "classes": classes}
    benchmarks = [Benchmark(name, content, "d") for name, content in contents.items()]
    rows = economies(benchmarks, FakeEncoder().text_keys)
    assert [row.what for row in rows[:2]] == [
        "cases, 3 items: images encoded",
        "cases, 3 items: texts encoded",
    ]
    assert [(row.baseline, row.ours) for row in rows] == [
        *((4, 2), (6, 3)),
        *((2, 2), (2, 2)),
        *((1, 1), (4, 4)),
        *((7, 2), (12, 6)),
    ]
    cases = tuple(Case(str(i), Form.CHOOSE_TEXT, (refs["a"],), ("x", "y"), "s") for i in range(5))
    encoder = FakeEncoder()
    naive, once = encoding_seconds(encoder, [Benchmark("c", cases, "d")], EncodeOptions())
    assert naive > 0 < once
    assert (len(encoder.images_seen), len(encoder.texts_seen)) == (5 + 1, 10 + 2)


@pytest.mark.slow
def test_real_captions_need_no_photos(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared_data / "annotations"
    names = ("sugarcrepe", "sugarcrepe_pp")
    targets = [f"{name}:swap_obj,annotations={folder / name}" for name in names]
    assert main(["evaluate", "--on", *targets, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["ours"] for row in rows[::2]] == [224, 224, 224]  # images
    assert [row["baseline"] for row in rows[1::2]] == [2 * 245, 3 * 245, 5 * 245]
    assert rows[5]["ours"] < rows[1]["ours"] + rows[3]["ours"]


def test_one_by_one_is_a_call_a_request_and_many_share_calls() -> None:
    options = serve.Options(clients=4, requests=12, repeats=1, side=32, device="cpu")
    rows = serve.measure(options, Path())
    assert [row.what.split()[0] for row in rows] == ["text", "text", "image", "image"]
    for row in rows[1::2]:
        assert row.baseline == 1 <= row.ours
