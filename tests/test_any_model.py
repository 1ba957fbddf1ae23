"""Embedders and scorers from outside, scores of pairs against plain loops, models that fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from build.photos import write_noise, write_photo
from build.tables import write_jsonl
from compoclip.archives import Members
from compoclip.benchmarks.case import Benchmark, Case, Form, ImageRef
from compoclip.captions.parser import parse
from compoclip.cli.main import main
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.embedder import Embedder, ExternalEncoder, Scorer, open_encoder
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.evaluation.pairs import caption_parts, image_parts
from compoclip.evaluation.results import load_items, load_results
from compoclip.evaluation.run import Options, evaluate
from compoclip.losses.local import local_similarity, max_similarity
from compoclip.models.checkpoint import LoadedModel, create_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.names import require_model
from evaluation_helpers import TINY

TEXTS = ("a red cat on a blue mat", "a blue cat on a red mat", "two dogs")
MODEL = '''
import numpy as np

class Colours:
    """Mean colour of an image; the share of letters of a text."""
    revision = "3"
    def images(self, images):
        return np.stack([np.asarray(each, dtype=np.float32).mean((0, 1)) for each in images])
    def texts(self, texts):
        return [[each.count(c) + 1 for c in "rgb"] for each in texts]

class Lengths:
    def __init__(self):
        self.asked = []
    def score(self, image, texts):
        self.asked.append((image.size, list(texts)))
        return [float(len(each)) for each in texts]

def _helper():
    return 1
'''
BROKEN = {
    "raises": ("raise ValueError('no weights')", "ValueError: no weights"),
    "memory": ("raise MemoryError('12 GB')", "MemoryError: 12 GB; correct the model; where memory"),
    "shape": ("return np.ones((len(images) + 1, 3))", "images() returns shape (3, 3), not (2, D)"),
    "flat": ("return np.ones(len(images))", "images() returns shape (2,), not (2, D)"),
    "nan": ("return np.full((len(images), 3), np.nan)", "features that are not finite numbers"),
    "text": ("return ['a'] * len(images)", "could not convert string to float"),
    "width": ("return np.ones((len(images), 5))", "features of images have 5 dimensions"),
}


@pytest.fixture
def refs(tmp_path: Path) -> list[ImageRef]:
    """Two photos, 40 x 48 and 50 x 64."""
    sizes = ((40, 48), (50, 64))
    return [ImageRef(write_noise(tmp_path / f"{k}.png", k, size)) for k, size in enumerate(sizes)]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return create_model(ModelConfig(TINY), seed=2)


def benchmark(refs: Sequence[ImageRef], name: str = "pairs") -> Benchmark:
    cases = (
        Case("t", Form.CHOOSE_TEXT, (refs[0],), TEXTS[:2], "text"),
        Case("p", Form.TRIPLE, (refs[1],), TEXTS, "triple"),
    )
    return Benchmark(name, cases, data_hash="0")


def scores(encoder: Any, refs: Sequence[ImageRef], out: Path, **options: Any) -> dict[str, Any]:
    """Item -> its stored scores."""
    every = Options(resamples=20, batch_size=2, **options)
    (result,) = evaluate("m", encoder, [benchmark(refs)], out, every)
    return {row["item"]: row["scores"] for row in load_items(result).to_pylist()}


def compared(refs: list[ImageRef]) -> list[tuple[str, ImageRef, Sequence[str]]]:
    """Return the items with their images and texts."""
    return [("t", refs[0], TEXTS[:2]), ("p", refs[1], TEXTS)]


def require_scores(
    stored: dict[str, Any],
    refs: list[ImageRef],
    expected: Callable[[ImageRef, str], float],
    atol: float,
) -> None:
    """Compare the scores of both items with those expected for their images and texts."""
    for item, ref, texts in compared(refs):
        for text, value in zip(texts, stored[item], strict=True):
            assert value == pytest.approx(expected(ref, text), abs=atol)


def cosine(a: Any, b: Any) -> float:
    product = sum(float(x) * float(y) for x, y in zip(a, b, strict=True))
    return product / math.sqrt(sum(float(x) ** 2 for x in a) * sum(float(y) ** 2 for y in b))


def write(tmp_path: Path, text: str = MODEL, name: str = "mine.py") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_an_embedder_of_a_file_is_scored_by_cosines(refs: list[ImageRef], tmp_path: Path) -> None:
    encoder = open_encoder(f"{write(tmp_path)}:Colours")

    def expected(ref: ImageRef, text: str) -> float:
        pixels = np.asarray(Image.open(ref.path), dtype=np.float64)
        return cosine(pixels.mean((0, 1)), [text.count(c) + 1 for c in "rgb"])

    require_scores(scores(encoder, refs, tmp_path / "out"), refs, expected, atol=1e-6)
    identity = encoder.identity.to_json()
    assert identity["revision"] == "3"
    assert list(identity["files"]) == ["mine.py"]
    write(tmp_path, MODEL.replace("+ 1", "+ 2"))
    assert open_encoder(f"{tmp_path / 'mine.py'}:Colours").identity != encoder.identity


def test_a_scorer_gets_each_needed_pair_once_and_scores_are_cached(
    refs: list[ImageRef], tmp_path: Path
) -> None:
    encoder = open_encoder(f"{write(tmp_path)}:Lengths")
    assert isinstance(encoder, ExternalEncoder)
    model: Any = encoder.model
    found = scores(encoder, refs, tmp_path / "out", cache=tmp_path / "cache")
    assert found == {"t": [23.0, 23.0], "p": [23.0, 23.0, 8.0]}
    asked = [(size, text) for size, texts in model.asked for text in texts]
    assert sorted(asked) == sorted(
        [((40, 48), text) for text in TEXTS[:2]] + [((50, 64), text) for text in TEXTS]
    )
    assert max(len(texts) for _, texts in model.asked) == 2  # the batch size
    (stored,) = load_results(tmp_path / "out" / "m")
    assert stored.score == "scorer"
    assert stored.pairs_per_second > 0
    model.asked.clear()
    again = scores(encoder, refs, tmp_path / "out", cache=tmp_path / "cache", fresh=True)
    assert again == found
    assert model.asked == []


def test_whole_benchmarks_of_texts_are_refused_for_pairs(tmp_path: Path) -> None:
    case = Case("o", Form.TEXT_ONLY, (), TEXTS, "text")
    encoder = open_encoder(f"{write(tmp_path)}:Lengths")
    with pytest.raises(UsageError, match="texts alone with --score cosine"):
        evaluate("m", encoder, [Benchmark("t", (case,), "0")], tmp_path / "out", Options())


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_that_fails_is_one_line_with_its_name(
    name: str, refs: list[ImageRef], tmp_path: Path
) -> None:
    code, words = BROKEN[name]
    text = (
        "import numpy as np\n\nclass Broken:\n    def texts(self, texts):\n"
        f"        return np.ones((len(texts), 3))\n    def images(self, images):\n        {code}\n"
    )
    encoder = open_encoder(write(tmp_path, text))
    with pytest.raises(CompoclipError) as raised:
        scores(encoder, refs, tmp_path / "out")
    assert str(raised.value).startswith("mine.py: ")
    assert words in str(raised.value)


def test_files_without_a_model_and_unknown_scores_are_named(
    refs: list[ImageRef], tmp_path: Path, loaded: LoadedModel
) -> None:
    for text, words in (
        ("x = 1\n", "name one of its models; it has: none, a class with images and texts"),
        (MODEL, "name one of its models; it has:"),
        ("class A:\n    images = texts = 1\n", "correct the model"),
    ):
        with pytest.raises(CompoclipError, match=words):
            scores(open_encoder(write(tmp_path, text)), refs, tmp_path / "out")
    lengths, checkpoint = open_encoder(f"{write(tmp_path)}:Lengths"), ModelEncoder(loaded)
    for encoder, score, words in (
        (checkpoint, "x", "--score x: must be cosine, itm"),
        (checkpoint, "itm", "--score itm: has no head"),
        (lengths, "local", "has no score 'local'"),
        (lengths, "cosine", "scores pairs and has no vectors; add --score scorer"),
    ):
        with pytest.raises(UsageError, match=words):
            scores(encoder, refs, tmp_path / "out", score=score)


@pytest.mark.parametrize("spec", ["st:a/b", "hf:a/b"])
def test_a_missing_library_is_one_line_with_the_extra(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sentence_transformers", "transformers"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(CompoclipError, match=rf"^{spec} needs \w+: pip install "):
        open_encoder(spec)


@pytest.mark.parametrize("name", ["hf", "st", "blind"])
def test_a_folder_that_is_called_as_a_library(
    name: str, loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(loaded, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    require_model(name, external=True)
    encoder = open_encoder(name)
    assert isinstance(encoder, ModelEncoder)
    assert encoder.identity.weights == loaded.identity.weights


def test_a_model_of_another_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "their_models.py").write_text(MODEL)
    point = EntryPoint("colours", "their_models:Colours", "compoclip.models")
    points = {"models": {point.name: point}}
    monkeypatch.setattr("compoclip.plugins.installed", lambda kind: points.get(kind, {}))
    encoder = open_encoder("colours")
    assert isinstance(encoder, ExternalEncoder)
    assert isinstance(encoder.model, Embedder)
    assert not isinstance(encoder.model, Scorer)


def test_other_models_are_measured_where_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(
        tmp_path, MODEL.replace("return [float", "raise MemoryError('8 GB')\n        return [float")
    )
    write_photo(tmp_path / "a.png", colour="red", size=(64, 64))
    row = {"image": "a.png", "caption": "a red wall", "negative_caption": "a green wall"}
    write_jsonl(tmp_path / "foils" / "walls.jsonl", [row])
    options = ["--on", "foils", f"--data={tmp_path}", f"--out={tmp_path / 'out'}", "--device=cpu"]
    models = [f"{file}:Lengths", f"{file}:Colours"]
    assert main(["evaluate", *models, *options]) == 1
    shown = capsys.readouterr()
    assert "Lengths is left out: mine.py:Lengths: MemoryError: 8 GB" in shown.err
    assert "Colours" in shown.out
    assert [result.model for result in load_results(tmp_path / "out")] == ["Colours"]


# --- Scores of pairs of a checkpoint, against plain loops over patches, tokens, windows, units. ---


@pytest.mark.parametrize("score", ["local", "maxsim"])
def test_local_scores_are_those_of_plain_loops(
    score: str, refs: list[ImageRef], tmp_path: Path, loaded: LoadedModel
) -> None:
    def expected(ref: ImageRef, text: str) -> float:
        pixels = loaded.preprocess.evaluation(Image.open(ref.path))[None]
        with torch.no_grad():
            features = loaded.encoder.features(pixels, loaded.tokenizer([text]), local=True)
        assert features.patches is not None
        assert features.tokens is not None
        assert features.token_mask is not None
        patches, scale = features.patches[0].tolist(), float(features.logit_scale)
        tokens = features.tokens[0][features.token_mask[0]].tolist()
        if score == "maxsim":
            return sum(max(cosine(p, t) for p in patches) for t in tokens) / len(tokens)
        terms = []
        for token in tokens:
            near = [sum(x * y for x, y in zip(token, p)) for p in patches]
            low, high = min(near), max(near)
            weight = [(value - low) / (high - low) for value in near]
            weight = [value / sum(weight) for value in weight]
            grouped = [sum(w * p[d] for w, p in zip(weight, patches)) for d in range(len(token))]
            terms.append(scale * cosine(grouped, token))
        top = max(terms)
        return top + math.log(sum(math.exp(term - top) for term in terms))

    stored = scores(ModelEncoder(loaded), refs, tmp_path / "out", score=score)
    require_scores(stored, refs, expected, atol=1e-4 if score == "local" else 1e-5)


def test_masked_tokens_do_not_count() -> None:
    draw = torch.Generator().manual_seed(0)
    tokens, patches = torch.randn(2, 4, 6, generator=draw), torch.randn(2, 3, 6, generator=draw)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    spoilt = tokens.masked_fill(~mask[..., None], torch.nan)
    for score in (local_similarity, max_similarity):
        whole = score(tokens, mask, patches, torch.tensor(10.0))
        assert torch.equal(whole, score(spoilt, mask, patches, torch.tensor(10.0)))
        short = score(tokens[:1, :2], mask[:1, :2], patches[:1], torch.tensor(10.0))
        assert torch.allclose(whole[:1], short)


def test_parts_are_units_of_the_caption_against_windows_of_the_image(
    refs: list[ImageRef], tmp_path: Path, loaded: LoadedModel
) -> None:
    assert set(caption_parts(parse(TEXTS[0]))) >= {"red cat", "blue mat", "red cat on blue mat"}
    assert caption_parts(parse("of")) == ("of",)
    windows = image_parts(refs[0], Members())  # 40 wide, 48 high
    assert windows[0] == refs[0]
    assert [each.box for each in windows[1:3]] == [(0, 0, 20, 24), (10, 0, 30, 24)]
    assert windows[9].box == (20, 24, 40, 48)
    inner = image_parts(ImageRef(refs[0].path, box=(4, 8, 12, 24)), Members())
    assert inner[9].box == (8, 16, 12, 24)
    for encoder in (ModelEncoder(loaded), open_encoder(f"{write(tmp_path)}:Colours")):
        out = tmp_path / type(encoder).__name__
        stored_scores = scores(encoder, refs, out, score="parts")
        for item, ref, texts in compared(refs):
            windows = [encoder.read_image(window) for window in image_parts(ref, Members())]
            vectors = [encoder.start_images([window])()[0] for window in windows]
            for text, value in zip(texts, stored_scores[item], strict=True):
                units = [encoder.start_texts([unit])()[0] for unit in caption_parts(parse(text))]
                best = [max(cosine(unit, vector) for vector in vectors) for unit in units]
                assert value == pytest.approx(sum(best) / len(best), abs=1e-5)
        (stored,) = load_results(out / "m")
        assert stored.identity["score"].keys() == {"tagger", "parser"}


def test_a_score_of_a_file_sees_the_model(
    refs: list[ImageRef], tmp_path: Path, loaded: LoadedModel
) -> None:
    flat = (
        "import numpy as np\n\ndef sharp(model, image, texts):\n"
        "    seen, read = model.images([image]), model.texts(texts)\n"
        "    return (100 * np.asarray(seen) @ np.asarray(read).T)[0]\n"
    )
    file = write(tmp_path, flat, "my_score.py")
    encoder = ModelEncoder(loaded)
    plain = scores(encoder, refs, tmp_path / "plain")
    found = scores(encoder, refs, tmp_path / "out", score=file)
    for item, values in plain.items():
        np.testing.assert_allclose(found[item], [100 * each for each in values], atol=1e-3)
    (stored,) = load_results(tmp_path / "out" / "m")
    assert stored.score == "my_score.py"
    assert list(stored.identity["score"]) == ["my_score.py"]
    write(tmp_path, flat.replace(")[0]", ")"), "my_score.py")
    with pytest.raises(CompoclipError, match=r"my_score.py: 2 texts got scores of shape \(1, 2\)"):
        scores(encoder, refs, tmp_path / "out", score=file)
    for value in ("float('nan')", "-float('inf')", "1e39", "None"):
        content = f"def score(model, image, texts):\n    return [{value} for _ in texts]\n"
        write(tmp_path, content, "my_score.py")
        with pytest.raises(CompoclipError, match=r"my_score.py: a score is no finite number"):
            scores(encoder, refs, tmp_path / "out", score=file)
