"""Models of sentence-transformers and transformers on real photos, equal to the libraries' own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from compoclip.benchmarks.case import ImageRef
from compoclip.cli.main import main
from compoclip.evaluation.embedder import open_encoder
from compoclip.evaluation.encoder import ImageReader
from compoclip.evaluation.libraries import ModelOptions
from compoclip.evaluation.results import Results, load_items, load_results
from tiny_transformers import write_clip, write_qwen, write_slices

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
pytest.importorskip("torchvision")
BENCHMARKS = ("sugarcrepe", "sugarcrepe_pp")


@pytest.fixture(scope="module")
def made(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, clip/ and qwen/."""
    if not hasattr(transformers, "Qwen3VLConfig"):
        pytest.skip("transformers before 4.57 has no Qwen3-VL")
    root = tmp_path_factory.mktemp("any")
    photos = shared_data / "photos" / "sugarcrepe_coco"
    texts = write_slices(root / "data", shared_data / "annotations", photos, items=3)
    write_clip(root / "clip", texts)
    write_qwen(root / "qwen", texts)
    return root


def measured(made: Path, out: Path, model: str, *more: str) -> list[Results]:
    command = ["evaluate", f"m={model}", "--on", *BENCHMARKS, f"--data={made / 'data'}"]
    command += [f"--out={out}", "--device=cpu", "--resamples=20", "--allow-partial", *more]
    assert main(command) == 0
    return load_results(out / "m")


def require_equal(
    results: list[Results], score: Callable[[Image.Image, list[str]], Any], atol: float = 1e-5
) -> None:
    """Every stored score equals that of the library, called for one item alone."""
    assert {each.benchmark for each in results} == set(BENCHMARKS)
    compared = 0
    for result in results:
        for row in load_items(result).to_pylist():
            with torch.inference_mode():
                image = Image.open(row["images"][0]).convert("RGB")
                expected = np.asarray(score(image, row["texts"]))
            np.testing.assert_allclose(row["scores"], expected, atol=atol)
            compared += len(row["texts"])
    assert compared >= 5 * 3 * (2 + 3) - 20  # a few items lack a photo


def unit(values: Any) -> Any:
    return torch.nn.functional.normalize(torch.as_tensor(values), dim=-1)


def test_sentence_transformers(made: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs the extra st")
    theirs = library.SentenceTransformer(str(made / "clip"), device="cpu")

    def score(image: Image.Image, texts: list[str]) -> Any:
        return theirs.similarity(theirs.encode([image]), theirs.encode(texts))[0]

    results = measured(made, tmp_path, f"st:{made / 'clip'}")
    require_equal(results, score)
    assert results[0].identity["architecture"] == f"st:{made / 'clip'}"
    assert results[0].identity["libraries"]["sentence-transformers"] == library.__version__
    assert results[0].identity["dtype"] == "float32"


@pytest.mark.parametrize("library", ["st", "hf"])
def test_a_prompt_takes_room_in_the_context(tmp_path: Path, library: str) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra st")
    write_clip(tmp_path / "clip", ["a cat"])
    text = " ".join(22 * ["cat"])  # with marks at both ends the 24 tokens of the model
    cut = [
        open_encoder(f"{library}:{tmp_path / 'clip'}", ModelOptions(text_prompt=prompt))
        .text_keys([text])[0]
        .truncated
        for prompt in (None, "a cat ")
    ]
    assert cut == [False, True]


def test_a_model_of_mteb(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = pytest.importorskip("mteb", reason="needs the extra mteb")
    datasets = pytest.importorskip("datasets", reason="needs the extra mteb")
    name = "mteb/baseline-random-encoder"
    theirs, task = library.get_model(name), library.get_task("SugarCrepe").metadata

    def encoded(kind: str, inputs: list[Any]) -> Any:
        rows = datasets.Dataset.from_dict({kind: inputs})
        loader = torch.utils.data.DataLoader(rows, batch_size=1, collate_fn=lambda each: {
            kind: [each[0][kind]]})  # fmt: skip
        return theirs.encode(loader, task_metadata=task, hf_split="test", hf_subset="default")

    results = measured(made, tmp_path, f"mteb:{name}", "--trust-remote-code")
    for row in (row for each in results for row in load_items(each).to_pylist()):
        image = ImageReader()(ImageRef(Path(row["images"][0])))  # its vectors are hashes of pixels
        expected = (unit(encoded("image", [image])) @ unit(encoded("text", row["texts"])).T)[0]
        np.testing.assert_allclose(row["scores"], expected, atol=1e-5)
    assert results[0].identity["libraries"]["mteb"] == library.__version__
    where = ["--data", str(made / "data"), "--out", str(tmp_path / "x"), "--on", "sugarcrepe"]
    assert main(["evaluate", f"mteb:{name}", *where, "--allow-partial"]) == 2
    assert "its weights bring code" in capsys.readouterr().err


def test_a_clip_of_transformers(made: Path, tmp_path: Path) -> None:
    model = transformers.CLIPModel.from_pretrained(made / "clip").eval()
    processor = transformers.AutoProcessor.from_pretrained(made / "clip")

    def score(image: Image.Image, texts: list[str]) -> Any:
        inputs = processor(
            text=texts, images=image, return_tensors="pt", padding=True, truncation=True
        )
        return model(**inputs).logits_per_image[0] / model.logit_scale.exp()

    results = measured(made, tmp_path, f"hf:{made / 'clip'}")
    require_equal(results, score)
    cut = sum(each.truncated_texts for each in results)
    assert cut == sum(
        len(processor.tokenizer(text).input_ids) > 24
        for each in results
        for text in {text for row in load_items(each).to_pylist() for text in row["texts"]}
    )
    prompt = measured(made, tmp_path / "p", f"hf:{made / 'clip'}", "--text-prompt", "a cat ")
    assert prompt[0].identity["weights"] != results[0].identity["weights"]
    require_equal(prompt, lambda image, texts: score(image, [f"a cat {each}" for each in texts]))


def chat(processor: Any, content: list[dict[str, str]], system: str = "") -> str:
    first = [{"role": "system", "content": [{"type": "text", "text": system}]}] if system else []
    messages = [*first, {"role": "user", "content": content}]
    return str(processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def test_a_language_model_embeds_by_its_last_token(made: Path, tmp_path: Path) -> None:
    model = transformers.Qwen3VLModel.from_pretrained(made / "qwen").eval()
    processor = transformers.AutoProcessor.from_pretrained(made / "qwen")

    def last(content: list[dict[str, str]], **images: Any) -> torch.Tensor:
        text = chat(processor, content, "Represent the user's input.")
        inputs = processor(text=[text], return_tensors="pt", **images)
        return unit(model(**inputs).last_hidden_state[0, -1])

    def score(image: Image.Image, texts: list[str]) -> Any:
        shown = last([{"type": "image"}], images=[image])
        return [float(shown @ last([{"type": "text", "text": text}])) for text in texts]

    results = measured(made, tmp_path, f"hf:{made / 'qwen'}")
    require_equal(results, score)
    assert results[0].identity["prompt"]["image"] == "Represent the user's input."


def test_a_language_model_answers(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = transformers.AutoModelForImageTextToText.from_pretrained(made / "qwen").eval()
    processor = transformers.AutoProcessor.from_pretrained(made / "qwen")
    yes = processor.tokenizer.convert_tokens_to_ids("Yes")

    def log_odds(image: Image.Image, texts: list[str]) -> Any:
        probabilities = []
        for text in texts:
            question = f'Does this figure show "{text}"? Please answer yes or no.'
            prompt = chat(processor, [{"type": "image"}, {"type": "text", "text": question}])
            inputs = processor(text=[prompt], images=[image], return_tensors="pt")
            probabilities.append(float(model(**inputs).logits[0, -1].softmax(-1)[yes]))
        return torch.logit(torch.tensor(probabilities, dtype=torch.float64))

    results = measured(made, tmp_path, f"hf:{made / 'qwen'}", "--score=vqa")
    require_equal(results, log_odds, atol=4e-5)  # so probabilities differ by 1e-5 at most
    assert results[0].score == "vqa"
    assert results[0].pairs_per_second > 0
    assert "pairs scored by vqa" in capsys.readouterr().out
    again = measured(made, tmp_path, f"hf:{made / 'qwen'}", "--score=vqa", "--fresh")
    assert again[0].pairs_per_second == 0  # all from the cache


def test_what_neither_embeds_nor_chats_is_named(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((made / "clip" / "config.json").read_text())
    folder = tmp_path / "vision"
    vision = transformers.CLIPVisionConfig(**config["vision_config"])
    transformers.CLIPVisionModel(vision).save_pretrained(folder)
    transformers.AutoProcessor.from_pretrained(made / "clip").save_pretrained(folder)
    options = [f"--data={made / 'data'}", f"--out={tmp_path / 'out'}", "--allow-partial"]
    assert main(["evaluate", f"hf:{folder}", "--on", "sugarcrepe", *options]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "has neither features of images and texts nor a chat template" in said
