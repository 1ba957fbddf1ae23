"""Exports of hard negatives: what each layout holds, and the libraries that read it."""

from __future__ import annotations

import ast
import csv
import json
import math
import re
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packaging.version import Version
from PIL import Image

from compoclip.captions.clip_text import token_key
from compoclip.cli.main import main
from compoclip.corpora.export import LAYOUTS
from compoclip.data.sources.open import open_source
from compoclip.evaluation.results import load_results
from tiny_transformers import MARKS, write_clip, write_qwen

pytestmark = pytest.mark.usefixtures("warm_workers", "restored_environment")

CAPTIONS = {
    "a.jpg": ["a red cup on a wooden table", "a wooden cup on a red table"],
    "b.jpg": ["a small dog next to a large cat"],
    "c.png": ["two men in black hats ride brown horses"],
    "d.jpg": ["the"],  # no rewrite finds anything in it
}
PAGE = Path(__file__).resolve().parents[1] / "docs" / "rewrites.md"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    lines = ["filepath,title"]
    for k, (name, captions) in enumerate(CAPTIONS.items()):
        Image.new("RGB", (40, 40), (60 * k, 20, 90)).save(folder / name)
        lines += [f"{name},{caption}" for caption in captions]
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    return folder


def exported(
    pairs: Path, out: Path, to: str, capsys: pytest.CaptureFixture[str], *more: str
) -> dict[str, Any]:
    asked = ["rewrite", str(pairs / "pairs.csv"), "--to", to, "-o", str(out), "--json"]
    capsys.readouterr()
    assert main([*asked, "--rewrites", "negclip,replace", *more]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_every_layout_holds_the_same_rows(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {to: exported(pairs, tmp_path / to, to, capsys) for to in LAYOUTS}
    for record in made.values():
        assert (record["photos"], record["captions"]) == (4, 5)
        assert record["left_out"]["caption without a negative"] == 1
        assert set(record["rewrites"]) == {"negclip", "replace"}
    swift = [json.loads(line) for line in (tmp_path / "ms-swift/train.jsonl").open()]
    found = {
        (Path(row["images"][0]).name, row["positive_messages"][0][0]["content"]): [
            each[0]["content"] for each in row["negative_messages"]
        ]
        for row in swift
    }
    assert len(found) == made["ms-swift"]["rows"] == 4
    assert sum(map(len, found.values())) == made["ms-swift"]["negatives"]
    for (name, caption), negatives in found.items():
        keys = {token_key(text) for text in (caption, *negatives)}
        assert len(keys) == 1 + len(negatives)  # all differ
        assert not keys - {token_key(caption)} & {token_key(t) for t in CAPTIONS[name]}
    with (tmp_path / "negclip/train.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    tsv = {(Path(r["filepath"]).name, r["title"]): ast.literal_eval(r["neg_caption"]) for r in rows}
    assert tsv == found
    for row in rows:
        near = ast.literal_eval(row["neg_image"])
        assert near
        assert all(rows[k]["filepath"] != row["filepath"] for k in near)
    shards = {}
    with tarfile.open(tmp_path / "open-clip/00000.tar") as tar:
        members = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    for name, content in members.items():
        if name.endswith(".txt"):
            fields = json.loads(members[name.replace(".txt", ".json")])
            shards[content.decode()] = fields["neg_caption"]
    assert shards == {caption: texts for (_, caption), texts in found.items()}
    assert sum(name.endswith((".jpg", ".png")) for name in members) == 4
    full = {key: texts for key, texts in found.items() if len(texts) == 2}
    table = pq.read_table(tmp_path / "sentence-transformers/train.parquet").to_pylist()
    assert {(Path(r["anchor"]["path"]).name, r["positive"]): [r["negative_1"], r["negative_2"]]
            for r in table} == full  # fmt: skip
    few = made["sentence-transformers"]["left_out"]
    assert few.get("caption with fewer negatives than rewrites", 0) == 4 - len(full)
    # what was written is training data here, too
    assert len(open_source(str(tmp_path / "open-clip/00000.tar"))) == 4
    table_again = open_source(str(tmp_path / "negclip/train.tsv"), images=pairs)
    assert [s.negatives for s in map(table_again.bare, range(4))] == list(map(tuple, tsv.values()))


def test_a_true_rewrite_is_no_negative(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The swap of the first caption is the second caption of the photo, and the other way round."""
    made = exported(pairs, tmp_path / "out", "ms-swift", capsys, "--workers", "2")
    again = exported(pairs, tmp_path / "again", "ms-swift", capsys)
    assert {**made, "out": ""} == {**again, "out": ""}
    files = [(tmp_path / name / "train.jsonl").read_bytes() for name in ("out", "again")]
    assert files[0] == files[1]


def test_the_card_says_how_it_was_made(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(pairs, tmp_path / "out", "negclip", capsys, "--licence", "CC BY 4.0")
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\ntags: ")
    for words in ("CC BY 4.0", "| replace | 5 |", "0.8 % | 6.7 % (3.4 to 12.6)", '"seed": 0',
                  "caption without a negative | 1", "One reader, blind"):  # fmt: skip
        assert words in card
    rates = json.loads(
        (
            Path(__file__).resolve().parents[1] / "src/compoclip/rewrites/data/errors.json"
        ).read_text()
    )["rates"]
    page = PAGE.read_text()
    for name in ("negclip", "replace", "ce-noun", "ce-adj", "ce-verb", "crepe-atom", "graph-rel"):
        wrong, broken = rates[name]
        assert re.search(
            rf"\| `{name}` \| [^|]* \| {re.escape(wrong)} \| {re.escape(broken)} \|", page
        )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "negatives named by --rewrites"),
        (("--rewrites", "synonym"), "synonym keeps the meaning"),
        (("--rewrites", "replace", "--engine", "ray"), "runs on this machine alone"),
    ],
)
def test_mistakes_are_one_line(
    pairs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    words: str,
) -> None:
    asked = ["rewrite", str(pairs / "pairs.csv"), "--to", "negclip", "-o", str(tmp_path / "x")]
    assert main([*asked, *more]) == 2
    assert words in capsys.readouterr().err
    assert main(["rewrite", "a cup", "--licence", "x"]) == 2
    assert "--licence goes with --to" in capsys.readouterr().err


def test_images_that_do_not_serve(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    negatives = ["--rewrites", "replace", "-o", str(tmp_path / "x"), "--to"]
    alone = tmp_path / "captions.txt"
    assert main(["rewrite", str(alone), *negatives, "negclip"]) == 1
    assert "captions.txt: not found" in capsys.readouterr().err
    alone.write_text("a red cup on a table\n")
    assert main(["rewrite", str(alone), *negatives, "negclip"]) == 2
    assert "a list of captions is rewritten without --to" in capsys.readouterr().err
    lost = tmp_path / "lost.csv"
    lost.write_text("filepath,title\nno.jpg,a red cup on a table\n")
    assert main(["rewrite", str(lost), *negatives, "negclip"]) == 1
    assert "no.jpg: no such file; check --images" in capsys.readouterr().err
    Image.new("RGB", (8, 8)).save(tmp_path / "odd.jpg", "GIF")
    lost.write_text("filepath,title\nodd.jpg,a red cup on a table\n")
    assert main(["rewrite", str(lost), *negatives, "open-clip"]) == 1
    assert "odd.jpg: is neither JPEG, PNG nor WebP" in capsys.readouterr().err
    exported(pairs, tmp_path / "tar", "open-clip", capsys)
    assert main(["rewrite", str(tmp_path / "tar" / "00000.tar"), *negatives, "negclip"]) == 2
    assert "choose --to sentence-transformers" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


# --- The libraries. ---


def test_sentence_transformers_trains_two_steps(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets", reason="needs pip install datasets")
    library = pytest.importorskip(
        "sentence_transformers", reason="needs pip install sentence-transformers"
    )
    pytest.importorskip("accelerate", reason="needs pip install accelerate")
    made = exported(pairs, tmp_path / "out", "sentence-transformers", capsys)
    file = str(tmp_path / "out" / "train.parquet")
    rows = datasets.load_dataset(
        "parquet", data_files=file, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert rows.num_rows == made["rows"] > 1
    assert rows[0]["anchor"].size == (40, 40)
    write_clip(tmp_path / "hf", [text for texts in CAPTIONS.values() for text in texts])
    model = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    before = [each.detach().clone() for each in model.parameters()]
    arguments = library.SentenceTransformerTrainingArguments(
        str(tmp_path / "run"),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss  # as the card says

    loss = MultipleNegativesRankingLoss(model)
    library.SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss).train()
    assert any((a != b).any() for a, b in zip(before, model.parameters()))


def test_swift_trains_two_steps(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    library = pytest.importorskip("swift", reason="needs pip install ms-swift")
    pytest.importorskip("qwen_vl_utils", reason="needs pip install qwen_vl_utils")
    made = exported(pairs, tmp_path / "out", "ms-swift", capsys)
    file = str(tmp_path / "out" / "train.jsonl")
    rows, _ = library.dataset.load_dataset(file)
    assert len(rows) == made["rows"]
    assert rows[0]["messages"] == [{"role": "user", "content": "<image>"}]
    assert sum(len(row["negative_messages"]) for row in rows) == made["negatives"]
    assert Path(rows[0]["images"][0]["path"]).is_file()
    name = "swift.template.templates.qwen.Qwen2VLTemplate.image_token_id"
    monkeypatch.setattr(name, MARKS.index("<|image_pad|>"))  # of Qwen's own tokenizer otherwise
    write_qwen(tmp_path / "qwen", [text for texts in CAPTIONS.values() for text in texts])
    arguments = library.SftArguments(
        model=str(tmp_path / "qwen"),
        model_type="qwen3_vl_emb",
        task_type="embedding",
        loss_type="infonce",
        tuner_type="full",
        torch_dtype="float32",
        dataset=[file],
        max_steps=2,
        per_device_train_batch_size=2,
        output_dir=str(tmp_path / "run"),
        use_cpu=True,
        report_to=[],
    )
    log = library.sft_main(arguments)["log_history"]
    losses = [each["loss"] for each in log if "loss" in each]
    assert losses
    assert all(map(math.isfinite, losses))
    (checkpoint,) = (tmp_path / "run").rglob("checkpoint-2")
    suite = f"rewrites:{pairs / 'pairs.csv'},images={pairs}"
    options = ["--on", suite, "--out", str(tmp_path / "results"), "--device=cpu", "--resamples=20"]
    models = [f"before=hf:{tmp_path / 'qwen'}", f"after=hf:{checkpoint}"]
    assert main(["evaluate", *models, *options]) == 0
    before, after = (load_results(tmp_path / "results" / time) for time in ("before", "after"))
    assert before[0].identity["weights"] != after[0].identity["weights"]


def test_pandas_reads_the_table_as_negclip_does(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = pytest.importorskip("pandas", reason="needs pip install pandas")
    made = exported(pairs, tmp_path / "out", "negclip", capsys)
    lists = dict.fromkeys(("neg_caption", "neg_image"), ast.literal_eval)
    rows = library.read_csv(tmp_path / "out" / "train.tsv", sep="\t", converters=lists)
    assert len(rows) == made["rows"]
    assert sum(map(len, rows["neg_caption"])) == made["negatives"]
    assert max(max(each) for each in rows["neg_image"]) < len(rows)


def test_open_clip_trains_two_steps(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("webdataset", reason="needs pip install open_clip_torch[training]")
    if Version(version("webdataset")) > Version("0.2.86"):
        pytest.skip("open_clip trains with webdataset up to 0.2.86")
    program = pytest.importorskip("open_clip_train.main", reason="needs open_clip_torch")
    made = exported(pairs, tmp_path / "out", "open-clip", capsys)
    program.main(
        [
            *("--dataset-type", "webdataset", "--train-data", str(tmp_path / "out" / "00000.tar")),
            *("--train-num-samples", str(made["rows"]), "--model", "ViT-S-32-alt"),
            *("--batch-size", "2", "--epochs", "1", "--workers", "0", "--device", "cpu"),
            *("--logs", str(tmp_path / "logs"), "--name", "run", "--warmup", "1"),
        ]
    )
    assert (tmp_path / "logs" / "run" / "checkpoints" / "epoch_1.pt").is_file()
