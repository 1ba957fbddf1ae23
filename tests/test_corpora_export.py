"""Exports of hard negatives: what each layout holds, and the libraries that read it."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packaging.version import Version
from PIL import Image

from build.tables import read_jsonl, write_json
from compoclip.captions.clip_text import token_key
from compoclip.cli.main import main
from compoclip.corpora.export import LAYOUTS
from compoclip.data.sources.open import open_source
from compoclip.evaluation.results import load_results
from corpus_shards import tar_members
from tiny_transformers import MARKS, write_clip, write_qwen

pytestmark = pytest.mark.usefixtures("warm_workers", "restored_environment")

CAPTIONS = {
    "a.jpg": ["a red cup on a wooden table", "a wooden cup on a red table"],
    "b.jpg": ["a small dog next to a large cat"],
    "c.png": ["two men in black hats ride brown horses"],
    "d.jpg": ["the"],  # no rewrite finds anything in it
}
Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    table = ["filepath,title"]
    for k, (name, captions) in enumerate(CAPTIONS.items()):
        Image.new("RGB", (40, 40), (60 * k, 20, 90)).save(folder / name)
        table += [f"{name},{caption}" for caption in captions]
    (folder / "pairs.csv").write_text("\n".join(table) + "\n")
    return folder


def exported(pairs: Path, out: Path, to: str, *more: str) -> dict[str, Any]:
    """Export the pairs, and return what the command prints."""
    command = ["rewrite", str(pairs / "pairs.csv"), "--to", to, "-o", str(out), "--json"]
    with redirect_stdout(io.StringIO()) as printed:
        assert main([*command, "--rewrites", "negclip,replace", *more]) == 0
    record: dict[str, Any] = json.loads(printed.getvalue())
    return record


@pytest.fixture(scope="module")
def exports(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports in every layout, with what the command printed beside each."""
    folder = tmp_path_factory.mktemp("exports")
    for to in LAYOUTS:
        record = exported(pairs, folder / to, to, "--licence", "CC BY 4.0", "--workers", "1")
        write_json(folder / f"{to}.json", record)
    return folder


def record_of(exports: Path, to: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((exports / f"{to}.json").read_text())
    return record


def test_every_layout_holds_the_same_rows(pairs: Path, exports: Path) -> None:
    records = {to: record_of(exports, to) for to in LAYOUTS}
    for record in records.values():
        assert (record["photos"], record["captions"]) == (4, 5)
        assert record["left_out"]["caption without a negative"] == 1
        assert set(record["rewrites"]) == {"negclip", "replace"}
    negatives_of = {
        (Path(row["images"][0]).name, row["positive_messages"][0][0]["content"]): [
            messages[0]["content"] for messages in row["negative_messages"]
        ]
        for row in read_jsonl(exports / "ms-swift/train.jsonl")
    }
    assert len(negatives_of) == records["ms-swift"]["rows"] == 4
    assert sum(map(len, negatives_of.values())) == records["ms-swift"]["negatives"]
    for (name, caption), negatives in negatives_of.items():
        keys = {token_key(text) for text in (caption, *negatives)}
        assert len(keys) == 1 + len(negatives)  # all differ
        # The swap of the first caption is the second one of the photo, and the other way round.
        assert not keys - {token_key(caption)} & {token_key(t) for t in CAPTIONS[name]}
    with (exports / "negclip/train.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    tsv = {(Path(r["filepath"]).name, r["title"]): ast.literal_eval(r["neg_caption"]) for r in rows}
    assert tsv == negatives_of
    for row in rows:
        near = ast.literal_eval(row["neg_image"])
        assert near
        assert all(rows[k]["filepath"] != row["filepath"] for k in near)
    members = {name: data for name, _, data in tar_members(exports / "open-clip/00000.tar")}
    shards = {
        text.decode(): json.loads(members[name.replace(".txt", ".json")])["neg_caption"]
        for name, text in members.items()
        if name.endswith(".txt")
    }
    assert shards == {caption: texts for (_, caption), texts in negatives_of.items()}
    assert sum(name.endswith((".jpg", ".png")) for name in members) == 4
    full = {key: texts for key, texts in negatives_of.items() if len(texts) == 2}
    table = pq.read_table(exports / "sentence-transformers/train.parquet").to_pylist()
    assert {(Path(r["anchor"]["path"]).name, r["positive"]): [r["negative_1"], r["negative_2"]]
            for r in table} == full  # fmt: skip
    few = records["sentence-transformers"]["left_out"]
    assert few.get("caption with fewer negatives than rewrites", 0) == 4 - len(full)
    # what was written is training data here, too
    assert len(open_source(str(exports / "open-clip/00000.tar"))) == 4
    source = open_source(str(exports / "negclip/train.tsv"), images=pairs)
    assert [sample.negatives for sample in source] == list(map(tuple, tsv.values()))


def test_workers_write_the_same_file(pairs: Path, exports: Path, tmp_path: Path) -> None:
    record = exported(pairs, tmp_path / "out", "ms-swift", "--workers", "2")
    assert record == {**record_of(exports, "ms-swift"), "out": record["out"]}
    files = [folder / "train.jsonl" for folder in (exports / "ms-swift", tmp_path / "out")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_card_says_how_it_was_made(exports: Path) -> None:
    card = (exports / "negclip" / "README.md").read_text()
    assert card.startswith("---\ntags: ")
    for words in ("CC BY 4.0", "| replace | 5 |", "0.8 % | 6.7 % (3.4 to 12.6)", '"seed": 0',
                  "caption without a negative | 1", "One reader, blind"):  # fmt: skip
        assert words in card
    rates = json.loads((ROOT / "src/compoclip/rewrites/data/errors.json").read_text())["rates"]
    page = (ROOT / "docs" / "rewrites.md").read_text()
    for name in ("negclip", "replace", "ce-noun", "ce-adj", "ce-verb", "crepe-atom", "graph-rel"):
        faulty, broken = map(re.escape, rates[name])
        assert re.search(rf"\| `{name}` \| [^|]* \| {faulty} \| {broken} \|", page)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("{pairs} --to=negclip", 2, "negatives named by --rewrites"),
        ("{pairs} --to=negclip --rewrites=synonym", 2, "synonym keeps the meaning"),
        ("{pairs} --to=negclip --rewrites=replace --engine=ray", 2, "runs on this machine alone"),
        ("a.txt --licence=x", 2, "--licence goes with --to"),
        ("none.txt --to=negclip --rewrites=replace", 1, "none.txt: not found"),
        ("a.txt --to=negclip --rewrites=replace", 2, "list of captions is rewritten without --to"),
        ("lost.csv --to=negclip --rewrites=replace", 1, "no.jpg: no such file; check --images"),
        ("odd.csv --to=open-clip --rewrites=replace", 1, "odd.jpg: is neither JPEG, PNG nor WebP"),
        ("{tar} --to=negclip --rewrites=replace", 2, "choose --to sentence-transformers"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    words: str,
    code: int,
    message: str,
    pairs: Path,
    exports: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a red cup on a table\n")
    Path("lost.csv").write_text("filepath,title\nno.jpg,a red cup on a table\n")
    Path("odd.csv").write_text("filepath,title\nodd.jpg,a red cup on a table\n")
    Image.new("RGB", (8, 8)).save("odd.jpg", "GIF")
    places = {"pairs": pairs / "pairs.csv", "tar": exports / "open-clip" / "00000.tar"}
    command = words.format(**places).split()
    assert main(["rewrite", *command, "-o", "x"]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("x").exists()


# --- The libraries. ---


def test_sentence_transformers_trains_two_steps(exports: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs pip install datasets")
    library = pytest.importorskip(
        "sentence_transformers", reason="needs pip install sentence-transformers"
    )
    pytest.importorskip("accelerate", reason="needs pip install accelerate")
    record = record_of(exports, "sentence-transformers")
    file = str(exports / "sentence-transformers" / "train.parquet")
    rows = datasets.load_dataset(
        "parquet", data_files=file, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert rows.num_rows == record["rows"] > 1
    assert rows[0]["anchor"].size == (40, 40)
    write_clip(tmp_path / "hf", [text for texts in CAPTIONS.values() for text in texts])
    model = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    before = [parameter.detach().clone() for parameter in model.parameters()]
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
    pairs: Path, exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    library = pytest.importorskip("swift", reason="needs pip install ms-swift")
    pytest.importorskip("qwen_vl_utils", reason="needs pip install qwen_vl_utils")
    record = record_of(exports, "ms-swift")
    file = str(exports / "ms-swift" / "train.jsonl")
    rows, _ = library.dataset.load_dataset(file)
    assert len(rows) == record["rows"]
    assert rows[0]["messages"] == [{"role": "user", "content": "<image>"}]
    assert sum(len(row["negative_messages"]) for row in rows) == record["negatives"]
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
    losses = [row["loss"] for row in log if "loss" in row]
    assert losses
    assert all(map(math.isfinite, losses))
    (checkpoint,) = (tmp_path / "run").rglob("checkpoint-2")
    suite = f"rewrites:{pairs / 'pairs.csv'},images={pairs}"
    options = ["--on", suite, "--out", str(tmp_path / "results"), "--device=cpu", "--resamples=20"]
    models = [f"before=hf:{tmp_path / 'qwen'}", f"after=hf:{checkpoint}"]
    assert main(["evaluate", *models, *options]) == 0
    before, after = (load_results(tmp_path / "results" / time) for time in ("before", "after"))
    assert before[0].identity["weights"] != after[0].identity["weights"]


def test_pandas_reads_the_table_as_negclip_does(exports: Path) -> None:
    library = pytest.importorskip("pandas", reason="needs pip install pandas")
    record = record_of(exports, "negclip")
    lists = dict.fromkeys(("neg_caption", "neg_image"), ast.literal_eval)
    rows = library.read_csv(exports / "negclip" / "train.tsv", sep="\t", converters=lists)
    assert len(rows) == record["rows"]
    assert sum(map(len, rows["neg_caption"])) == record["negatives"]
    assert max(map(max, rows["neg_image"])) < len(rows)


def test_open_clip_trains_two_steps(exports: Path, tmp_path: Path) -> None:
    pytest.importorskip("webdataset", reason="needs pip install open_clip_torch[training]")
    if Version(version("webdataset")) > Version("0.2.86"):
        pytest.skip("open_clip trains with webdataset up to 0.2.86")
    program = pytest.importorskip("open_clip_train.main", reason="needs open_clip_torch")
    record = record_of(exports, "open-clip")
    program.main(
        [
            *("--train-data", str(exports / "open-clip" / "00000.tar")),
            *("--dataset-type", "webdataset"),
            *("--train-num-samples", str(record["rows"]), "--model", "ViT-S-32-alt"),
            *("--batch-size", "2", "--epochs", "1", "--workers", "0", "--device", "cpu"),
            *("--logs", str(tmp_path / "logs"), "--name", "run", "--warmup", "1"),
        ]
    )
    assert (tmp_path / "logs" / "run" / "checkpoints" / "epoch_1.pt").is_file()
