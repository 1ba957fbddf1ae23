"""Captions of photos by CoCa and BLIP: each token, resuming, photos without one, training."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import open_clip.coca_model
import pyarrow.parquet as pq
import pytest
import torch
from open_clip.coca_model import CoCa
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import save_file

from build.tables import read_jsonl, write_json, write_jsonl, write_parquet
from compoclip.cli.main import main
from compoclip.data import captioner as captioners
from compoclip.data.captioner import CocaCaptioner, PhotoAsking, TransformersCaptioner
from compoclip.data.sources.open import Request, open_source
from compoclip.language.engine import Sampling
from compoclip.language.rows import Outputs
from compoclip.models.checkpoint import LoadedModel, load_model
from compoclip.recordfile import settings_path
from models_thin import config, only_known
from train_helpers import FEW, few_merges

Capture = pytest.CaptureFixture[str]
MULTIMODAL = {"context_length": 20, "width": 32, "heads": 4, "layers": 2, "attn_pooler_heads": 4}


def coca_config(words: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a tiny CoCa; words: its vocabulary, and its merges."""
    vision = {"attentional_pool": True, "attn_pooler_heads": 4, "output_tokens": True}
    text = {**words, "embed_cls": True, "output_tokens": True}
    multimodal = {**MULTIMODAL, "vocab_size": words["vocab_size"]}
    return config(vision=vision, text=text, embed_dim=32, multimodal_cfg=multimodal)


SEEN: Any = image_transform_v2(PreprocessCfg(size=32), is_train=False)


@pytest.fixture(scope="module")
def coca(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny CoCa in a folder, with random weights that make captions differ."""
    folder = tmp_path_factory.mktemp("coca")
    whole = coca_config(few_merges(folder, FEW))
    torch.manual_seed(3)
    model = CoCa(**deepcopy(whole))
    with torch.no_grad():
        for parameter in model.parameters():  # open_clip leaves one of them as memory has it
            if parameter.ndim > 1:
                parameter.normal_()
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    cfg = {"model_cfg": {**whole, "custom_text": True}, "preprocess_cfg": {"size": 32}}
    write_json(folder / "open_clip_config.json", cfg)
    return str(folder)


def draw(folder: Path, number: int = 5) -> Path:
    """Write photos that differ."""
    folder.mkdir(parents=True)
    for k in range(number):
        photo = Image.effect_mandelbrot((40 + k, 36), (-2 + 0.4 * k, -1.5, 1, 1.5), 20 + 30 * k)
        photo.convert("RGB").save(folder / f"{k}.png")
    return folder


def run(data: Path, out: Path, model: str, *more: str) -> int:
    options = ["--task=photos", f"--model={model}", f"--out={out}", "--device=cpu"]
    return main(["caption", str(data), *options, *more])


def opened(folder: Path) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in sorted(folder.iterdir())]


def greedy(loaded: LoadedModel, photo: Image.Image, most: int) -> str:
    """Continue the start with the likeliest token, of the whole text each time."""
    tokenizer = loaded.tokenizer.simple
    model: Any = loaded.encoder.model
    pixels = SEEN(photo)[None]
    ids = [tokenizer.sot_token_id]
    with torch.no_grad():
        while len(ids) < most:
            logits = model(pixels, torch.tensor([ids]), output_labels=False)["logits"][0, -1]
            order = [int(token) for token in logits.argsort(descending=True)]
            if len(ids) < 5:
                order.remove(tokenizer.eot_token_id)
            if order[0] in (0, tokenizer.eot_token_id):
                break
            ids.append(order[0])
    return tokenizer.decode(ids[1:])


def test_tokens_are_the_likeliest_ones(coca: str, tmp_path: Path) -> None:
    photos = opened(draw(tmp_path / "photos", 3))
    captioner, loaded = CocaCaptioner(coca), load_model(coca)
    several = captioner.caption(photos, [Sampling(0.0, 12, 0) for _ in photos])
    texts = [answer.text for answer in several]
    assert texts == [greedy(loaded, photo, 12) for photo in photos]
    assert len({*texts}) > 1
    assert [captioner.caption([p], [Sampling(0.0, 12, 0)])[0].text for p in photos] == texts
    # No caption is longer than the model's context.
    (long,) = captioner.caption(photos[:1], [Sampling(0.0, 500, 0)])
    assert long.tokens_out is not None
    assert long.tokens_out < 20
    assert long.cut_off == (long.tokens_out == 19)


def test_tokens_are_those_of_open_clip(coca: str, tmp_path: Path) -> None:
    if not open_clip.coca_model._has_transformers:
        pytest.skip("CoCa.generate needs transformers below 4.57")
    loaded = load_model(coca)
    model: Any = loaded.encoder.model
    tokenizer: Any = loaded.tokenizer.simple
    ends = (0, tokenizer.sot_token_id, tokenizer.eot_token_id)
    for photo in opened(draw(tmp_path / "photos")):
        pixels = SEEN(photo)[None]
        ids = model.generate(pixels, generation_type="top_k", top_k=1, seq_len=12)[0].tolist()
        words = [token for token in ids[1:] if token not in ends]
        (answer,) = CocaCaptioner(coca).caption([photo], [Sampling(0.0, 12, 0)])
        # Its last token of seq_len is the end in any case.
        assert answer.text.startswith(tokenizer.decode(words))
        assert answer.tokens_out is not None
        assert answer.tokens_out - len(words) in (0, 1)


def test_samples_depend_on_the_seed_and_the_photo_alone(coca: str, tmp_path: Path) -> None:
    folder = draw(tmp_path / "photos", 3)
    texts = []
    for more in (["--seed=1"], ["--seed=1", "--batch-size=2"], ["--seed=2"]):
        out = tmp_path / f"{len(texts)}.jsonl"
        assert run(folder, out, coca, "--temperature=1.5", "--max-tokens=8", *more) == 0
        texts.append([row["caption"] for row in read_jsonl(out)])
    assert texts[0] == texts[1] != texts[2]
    asking = PhotoAsking(seed=1)
    assert asking.sampling("a") == PhotoAsking(seed=1).sampling("a") != asking.sampling("b")
    assert asking.sampling("a") != PhotoAsking(seed=2).sampling("a")


def test_what_train_takes(coca: str, tmp_path: Path, capsys: Capture) -> None:
    folder = draw(tmp_path / "data" / "photos", 8)
    out = tmp_path / "captions.parquet"
    assert run(folder, out, coca, "--max-tokens=10", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["photos"], summary["captions"], summary["left_out"]) == (8, 8, {})
    rows = pq.read_table(out).to_pylist()
    assert [row["image"] for row in rows] == [f"data/photos/{k}.png" for k in range(8)]
    record = {"task": "photos", "model": coca, "temperature": 0.0, "seed": 0}
    assert rows[0].items() >= {**record, "engine": f"open_clip {open_clip.__version__}"}.items()
    data = open_source(str(out))
    assert list(data.column("captions")) == [(row["caption"],) for row in rows]
    assert data[7].image.read_bytes() == (folder / "7.png").read_bytes()
    # A table that names photos, with or without captions.
    table = tmp_path / "table.csv"
    table.write_text("image,caption\n0.png,x\n3.png,\n")
    assert run(table, tmp_path / "t.jsonl", coca, f"--images={folder}", "--max-tokens=10") == 0
    chosen = read_jsonl(tmp_path / "t.jsonl")
    assert [row["caption"] for row in chosen] == [rows[k]["caption"] for k in (0, 3)]


def test_a_stopped_command_resumes(coca: str, tmp_path: Path, capsys: Capture) -> None:
    folder, out = draw(tmp_path / "photos"), tmp_path / "out" / "c.jsonl"
    words = ["--max-tokens=8", "--batch-size=2"]
    asked: list[int] = []

    class Stopping(CocaCaptioner):
        def caption(self, photos: Sequence[Image.Image], samplings: Sequence[Sampling]) -> Any:
            asked.append(len(photos))
            if len(asked) == 2:
                raise KeyboardInterrupt
            return super().caption(photos, samplings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captioners, "CocaCaptioner", Stopping)
        assert run(folder, out, coca, *words) > 0
        assert "the same command resumes" in capsys.readouterr().err
        assert not out.exists()
        assert run(folder, out, coca, *words) == 0
        assert asked == [2, 2, 2, 1]
        assert run(folder, out, coca, *words) == 0
        assert len(asked) == 4
    assert "5 captions for 5 photos" in capsys.readouterr().out
    assert run(folder, tmp_path / "whole.jsonl", coca, "--max-tokens=8", "--batch-size=5") == 0
    rows, whole = read_jsonl(out), read_jsonl(tmp_path / "whole.jsonl")
    assert [row["caption"] for row in rows] == [row["caption"] for row in whole]
    photos = [(out.parent / row["image"]).resolve() for row in rows]
    assert photos == [(folder / f"{k}.png").resolve() for k in range(5)]
    capsys.readouterr()
    for more in (["--max-tokens=9"], ["--temperature=1"], ["--seed=1"]):
        assert run(folder, out, coca, "--max-tokens=8", *more) == 2
        assert "was made with other settings" in capsys.readouterr().err


def test_answers_of_an_earlier_version_are_called_so(
    coca: str, tmp_path: Path, capsys: Capture
) -> None:
    """It recorded no hash of the photo."""
    folder, out = draw(tmp_path / "photos", 3), tmp_path / "c.jsonl"
    assert run(folder, out, coca, "--max-tokens=8") == 0
    before, answers = read_jsonl(out), Outputs(out).answers
    records = [{k: v for k, v in row.items() if k != "photo"} for row in read_jsonl(answers)]
    write_jsonl(answers, records)
    settings = settings_path(answers)
    made_from = json.loads(settings.read_text())
    write_json(settings, {k: v for k, v in made_from.items() if k != "content of the file"})
    capsys.readouterr()
    assert run(folder, out, coca, "--max-tokens=8") == 0
    said = capsys.readouterr()
    anew = "3 of an earlier version, without hashes; captioned anew"
    assert f"{answers}: {anew}" in said.err
    assert "damaged" not in said.err
    assert "were there" not in said.out
    assert read_jsonl(out) == before
    assert run(folder, out, coca, "--max-tokens=8") == 0
    said = capsys.readouterr()
    assert "earlier version" not in said.err
    assert "3 were there" in said.out


def test_photos_without_a_caption_are_counted(coca: str, tmp_path: Path, capsys: Capture) -> None:
    folder, out = draw(tmp_path / "photos"), tmp_path / "c.jsonl"
    (folder / "2.png").write_bytes(b"no photo")
    empty = ["   "]

    class Silent(CocaCaptioner):
        def caption(self, photos: Sequence[Image.Image], samplings: Sequence[Sampling]) -> Any:
            answers = super().caption(photos, samplings)
            return [*answers[:-1], answers[-1].__class__(empty.pop())] if empty else answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captioners, "CocaCaptioner", Silent)
        assert run(folder, out, coca, "--max-tokens=8") == 1
    shown = capsys.readouterr().out
    assert "3 captions for 5 photos" in shown
    assert "without a caption: 1 x empty, 1 x unreadable-photo" in shown
    rejected = read_jsonl(tmp_path / "c.rejected.jsonl")
    assert [(row["id"], row["reason"]) for row in rejected] == [
        ("2.png", "unreadable-photo"),
        ("4.png", "empty"),
    ]
    assert len(read_jsonl(out)) + len(rejected) == 5
    Image.new("RGB", (40, 40), "red").save(folder / "2.png")
    assert run(folder, out, coca, "--max-tokens=8") == 0  # tries them again
    assert [row["id"] for row in read_jsonl(out)] == [f"{k}.png" for k in range(5)]
    assert read_jsonl(tmp_path / "c.rejected.jsonl") == []
    Image.new("RGB", (40, 40), "blue").save(folder / "0.png")
    (folder / "1.png").write_bytes(b"no photo any more")
    capsys.readouterr()
    assert run(folder, out, coca, "--max-tokens=8") == 1
    assert re.search(r"4 captions for 5 photos in \d+ s, 3 were there", capsys.readouterr().out)
    assert [row["id"] for row in read_jsonl(out)] == ["0.png", "2.png", "3.png", "4.png"]
    assert [row["id"] for row in read_jsonl(tmp_path / "c.rejected.jsonl")] == ["1.png"]


def test_what_cannot_be_done_is_one_line(
    coca: str, world: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    only_known(monkeypatch, {"coca_Tiny": coca_config({"vocab_size": 49408})})
    photo = (draw(Path("photos"), 1) / "0.png").read_bytes()
    Path("a.txt").write_text("a dog")
    Path("damaged").mkdir()
    Path("damaged/0.png").write_bytes(b"no photo")
    images = [{"bytes": photo, "path": "0.png"}]
    write_parquet(Path("t.parquet"), {"image": images, "caption": ["a photo"]})
    for data, words, expected, message in (
        ("photos", [f"--model={world / 'base'}"], 2, "writes no captions; name a CoCa"),
        ("photos", ["--model=coca_Tiny@none.pt"], 2, "none.pt"),
        ("photos", ["--server=x"], 2, "--server has no use with --task photos"),
        ("photos", ["--column=x"], 2, "--column has no use with --task photos"),
        ("photos", ["--tries=3"], 2, "--tries has no use with --task photos"),
        ("a.txt", ["--task=dense", "--batch-size=3"], 2, "--batch-size goes with --task photos"),
        ("a.txt", ["--task=dense", "--split=val"], 2, "a list of captions takes no --split"),
        ("photos", ["--temperature=-1"], 2, "--temperature"),
        ("no", [], 1, "no: not found"),
        ("a.txt", [], 2, "a.txt"),
        ("a.txt", ["--task=dense", "--images=photos"], 2, "--images goes with --task photos"),
        ("t.parquet", [], 2, "a caption needs a photo with a file of its own"),
        ("damaged", [], 1, "no photo has got a caption ("),
    ):
        try:
            code = run(Path(data), Path("c.jsonl"), coca, *words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        error = capsys.readouterr().err.strip().splitlines()
        assert code == expected, words
        assert message in error[-1], words
        assert not Path("c.jsonl").exists()


# --- BLIP of transformers. ---


def write_blip(folder: Path) -> str:
    """Write a random BLIP captioner of few words."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "a", "dog", "cat", "on", "mat"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    pixels = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    transformers.BlipProcessor(pixels, tokenizer).save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes["num_attention_heads"] = 2
    ids = {"bos_token_id": 5, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}
    text = {**sizes, **ids, "vocab_size": len(words), "encoder_hidden_size": 32}
    vision = {**sizes, "image_size": 32, "patch_size": 8}
    settings = transformers.BlipConfig(text_config=text, vision_config=vision)
    torch.manual_seed(2)
    model = transformers.BlipForConditionalGeneration(settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 6
    model.save_pretrained(folder)
    return str(folder)


def test_blip_captions_photos(tmp_path: Path) -> None:
    model = write_blip(tmp_path / "blip")
    folder, out = draw(tmp_path / "photos"), tmp_path / "c.jsonl"
    run(folder, out, f"hf:{model}", "--max-tokens=6")
    rows = read_jsonl(out)
    rejected = read_jsonl(tmp_path / "c.rejected.jsonl")
    assert len(rows) + len(rejected) == 5
    import transformers

    theirs = transformers.BlipForConditionalGeneration.from_pretrained(model).eval()
    processor = transformers.BlipProcessor.from_pretrained(model)
    texts = {}
    for k, photo in enumerate(opened(folder)):
        inputs = processor(images=photo, return_tensors="pt")
        ids = theirs.generate(**inputs, max_new_tokens=6, do_sample=False)[0]
        texts[f"{k}.png"] = " ".join(processor.decode(ids, skip_special_tokens=True).split())
    assert {row["id"]: row["caption"] for row in rows} == {k: v for k, v in texts.items() if v}
    assert any(texts.values())
    captioner = TransformersCaptioner(model)
    samplings = [Sampling(1.0, 12, seed) for seed in (1, 1)]
    first, again = (captioner.caption(opened(folder)[:1], [s])[0].text for s in samplings)
    assert first == again
    assert Request(str(out)).open()[0].captions == (rows[0]["caption"],)


def test_a_folder_that_is_no_captioner(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("transformers", reason="needs the extra hf")
    folder = draw(tmp_path / "photos", 1)
    write_json(tmp_path / "no" / "config.json", {"model_type": "bert"})
    assert run(folder, tmp_path / "c.jsonl", f"hf:{tmp_path / 'no'}") == 1
    assert "not a model that transformers can caption photos with" in capsys.readouterr().err


def test_without_transformers_the_extra_is_named(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    folder = draw(tmp_path / "photos", 1)
    assert run(folder, tmp_path / "c.jsonl", "hf:somebody/blip") == 1
    assert "needs transformers: pip install" in capsys.readouterr().err
