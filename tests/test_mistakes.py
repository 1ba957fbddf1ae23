"""Mistakes that people type: refused before torch is loaded, with the name that they meant."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

import compoclip
from compoclip.cli.data import TASKS
from compoclip.cli.main import VERBS, all_verbs, main
from compoclip.cli.options import OptionParser
from compoclip.config import names_here
from compoclip.methods.registry import method_names
from compoclip.run import TrainOptions
from compoclip_world.cli import WHATS as WORLD_TASKS

# Command -> words of its message.
REFUSED = {
    "train clip-ft --data none.csv --out o": "none.csv: not found",
    "train clip-ft --data c.csv --images none --out o": "none: no such folder; correct --images",
    "train clip-ft --data c.csv --model none --out o": "no model 'none'",
    "train clip-ft --data c.csv --model ViT-B-32:opnai --out o": "no weights 'opnai'",
    "train clip-ft --data c.csv --model random:ViT-B-32:x --out o": "the seed 'x' is not a number",
    "train clip-ft --from-scratch --model t.txt --data c.csv --out o": "t.txt: not valid JSON",
    "train clip-ft --data c.csv --init-from none --out o": "no model 'none'",
    "train clip-ft --data c.csv --texts +synonm --out o": "did you mean synonym",
    "train clip-ft --data c.csv --texts +./none.py --out o": "none.py: no such file",
    "train clip-ft --data c.csv --terms +negclp --out o": "--terms +negclp: no method 'negclp'",
    "train clip-ft --data c.csv --terms +fsc-clip.locl_hn --out o": "did you mean local_hn",
    "train clip-ft --data c.csv --terms +./none.py --out o": "none.py: no such file",
    "train clip-ft --data c.csv --set term.hn.weight=1 --out o": "no part 'term'; did you mean",
    "train clip-ft --data c.csv --set freeze=imge --out o": "--freeze imge: must be image, text",
    "train clip-ft --data c.csv --push-to-hub a//b --out o": "a//b: not a name on the hub",
    "train dac --bags none.jsonl --data c.csv --out o": "none.jsonl: no such file; correct --bags",
    "train hard-positives --positives 'none-*' --data c.csv --out o": "correct --positives",
    "train clic --paraphrases none --data c.csv --out o": "no such file; correct --paraphrases",
    "train cs-clip --units none --data c.csv --out o": "none: no such file; correct --units",
    "train macco --concepts none --data c.csv --out o": "none: no such file; correct --concepts",
    "train mosaic-clip --vocabulary none --data c.csv --out o": "correct --vocabulary",
    "train read-clip --decoder ./none --data c.csv --out o": "./none: no such folder",
    "train slipform --ratings none --data c.csv --out o": "none: no such file; correct --ratings",
    "train tsvlc-llm --negatives none --data c.csv --out o": "correct --negatives",
    "sweep clip-ft --data c.csv --images photos --grid lrr=1,2 --out o": "did you mean lr?",
    "sweep clip-ft --data c.csv --images photos --grid texts=+synonm --out o": "'synonm'",
    "train clip-ft --data c.csv --on none --out o": "no benchmark 'none'",
    "train clip-ft --data c.csv --set teacher=none --out o": "no model 'none'",
    "train clip-ft --data c.csv --out c.csv/o": "c.csv is not a folder",
    "train clip-ft --data c.csv --out c.csv": "c.csv: is a file; name a folder with --out",
    "train clip-ft --data c.csv --device gpu --out o": "--device 'gpu' is not one of cpu",
    "train clip-ftt --data c.csv --out o": "no method 'clip-ftt'; did you mean clip-ft",
    "train clip-ft --data empty --out o": "empty: an empty folder",
    "train clip-ft --data headonly.csv --out o": "headonly.csv: has a header and no rows",
    "train clip-ft --data world --out o": "world: its data are in world/train; name that folder",
    "train clip-ft --data photos --out o": "write captions in a table, or those of photo.jpg in",
    "train clip-ft --data t.txt --out o": "the nearest to it are: Flickr8k token file",
    "train clip-ft --data c.csv --set patience=-1 --out o": "--set patience must not be",
    "train clip-ft --data c.csv --split val --set held_out=0.9 --out o": "--set held_out=0.9",
    "train clip-ft --data c.csv=0.5 none.csv=0.5 --out o": "none.csv: not found",
    "sweep clip-ft --data none.csv --grid lr=1,2 --out o": "none.csv: not found",
    "train clip-ft c.csv --out o": "write the name of its option before it, such as --data c.csv",
    "train c.csv --data clip-ft --out o": "c.csv: is no method; write the method before it",
    "train clip-ft --data zero.csv --out o": "zero.csv: has no columns; name a file with a header",
    "tune none.csv --model bundled --out o": "none.csv: not found",
    "tune c.csv --images photos --model bundled --out o": "c.csv: 1 photo; tune needs 50",
    "tune c.csv --model none/model --out o": "none/model: no such folder or file",
    "wise-ft bundled none --out o": "no model 'none'",
    "towers none bundled --on zero_shot:dtd --out o": "no model 'none'",
    "evaluate none --on zero_shot:dtd": "no model 'none'",
    "evaluate ./none.py --on zero_shot:dtd": "none.py: no such file",
    "evaluate ViT-B-32:opnai --on retrieval:c.csv": "did you mean openai",
    "evaluate hf:./none --on retrieval:c.csv": "./none: no such folder",
    "evaluate bundled --on retrieval:c.csv --score coine": "--score coine: must be cosine",
    "evaluate bundled --on retrieval:c.csv --score ./none.py": "none.py: no such file",
    "evaluate bundled --on retrieval:c.csv --judge none": "no model 'none'",
    "evaluate bundled": "name a benchmark with --on",
    "evaluate bundled --on none": "no benchmark 'none'",
    "evaluate bundled --on retrieval:c.csv,images=none": "none: no such folder",
    "evaluate bundled --on retrieval:c.csv --device tpu": "--device 'tpu'",
    "compare two": "compoclip compare two/a two/b",
    "compare none results": "none: no such file or folder",
    "compare two --against fsc-clip-tabl1": "no published table 'fsc-clip-tabl1'; did you mean",
    "report none -o r.html": "none: no such file or folder",
    "report photos --maps a=none -o r.html": "no model 'none'",
    "report photos --runs none -o r.html": "none: no such folder; correct --runs",
    "bundle none --results r --out b.zip": "none: no such folder",
    "bundle photos --results two --out b.zip --against none": "no published table 'none'",
    "verify none.zip": "none.zip: no such file or folder",
    "reproduce none --out o": "no protocol 'none'",
    "tree-score bundled --captions none.txt": "none.txt: no such file or folder",
    "nearest bundled --on none --out o.html": "no benchmark 'none'",
    "maps bundled --image none.png --caption x --out o": "none.png: no such file; correct --image",
    "maps bundled --image t.txt --caption x --out o": "t.txt: ",
    "rewrite none.txt -o o.jsonl": "none.txt: no such file",
    "rewrite t.txt -o o.jsonl --rewrites negclp": "did you mean negclip",
    "rewrite c.csv --images none --to negclip --rewrites replace -o o": "none: no such folder",
    "parse none.txt -o o.jsonl": "none.txt: no such file",
    "caption none.txt --task dense --model m --out o.jsonl": "none.txt: not found",
    "caption t.txt --task dens --model m --out o.jsonl": "no task 'dens'; did you mean dense?",
    "caption t.txt --task dense --model ./none --out o.jsonl": "./none: no such folder",
    "data pack none.csv --out o": "none.csv: not found",
    "data cc-neg none.pt --out o.tsv": "none.pt: no such file",
    "data fetch none": "no benchmark 'none'",
    "data ls none": "no benchmark 'none'",
    "data audit --data photos": "write captions in a table, or those of photo.jpg in photo.txt",
    "data audit --data headonly.csv": "headonly.csv: has a header and no rows",
    "data audit none": "no benchmark 'none'",
    "data check none": "no benchmark 'none'",
    "index photos --model bundled": "give --out INDEX: The index: a file, with --to lancedb",
    "index empty --model bundled --out i": "empty: an empty folder; name one with photos",
    "index none --model bundled --out i": "none: not found",
    "index photos --model none --out i": "no model 'none'",
    "search none.index x": "none.index: no such index",
    "search photos x": "photos: is a folder; to search photos in it, make it with compoclip index",
    "search t.txt x": "t.txt: is no index of photos",
    "play none": "no model 'none'",
    "play bundled --index photos": "photos: is a folder",
    "serve none": "no model 'none'",
    "inspect none": "no model 'none'",
    "convert none o --to hf": "no model 'none'",
    "convert bundled o --to hf --push-to-hub a//b": "a//b: not a name on the hub",
    "push photos me/x": "photos: is not a model folder",
    "push none me/x": "none: no such folder",
    "list methods none": "no method 'none'",
    "list losses none": "unknown loss 'none'",
    "list losses ./none.py": "none.py: no such file",
    "demo --methods clip-ftt": "no method 'clip-ftt'; did you mean clip-ft",
    "demo --model none": "no model 'none'",
    "demo --out c.csv": "c.csv: is a file; name a folder with --out",
    "world train --out o --count 2 --config none.json": "none.json: no such file",
    "world suite --out o --benchmarks none": "no benchmark 'none' is made here",
    "world pointing none": "no model 'none'",
    "new methd x": "did you mean method?",
    "cache --clear featurs": "did you mean features?",
}
HELPS = [
    "--help",
    *(f"{verb} --help" for verb in all_verbs().table),
    *(f"data {task} --help" for task in TASKS.table),
    *(f"world {task} --help" for task in WORLD_TASKS.table),
    *(f"train {method} --help" for method in method_names()),
    "sweep clip-ft --help",
]
_RUN = """
import shlex, sys
class Refuse:
    def find_spec(self, name, path, target=None):
        assert name != "torch", "torch is imported"
sys.meta_path.insert(0, Refuse())
from compoclip.cli.main import main
for line in sys.stdin.read().splitlines():
    print("$", line, file=sys.stderr, flush=True)
    try:
        code = main(shlex.split(line))
    except SystemExit as end:
        code = end.code
    print("exit", code, file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Command -> the lines that it prints, of one process that cannot import torch."""
    place = tmp_path_factory.mktemp("typed")
    (place / "photos").mkdir()
    (place / "empty").mkdir()
    Image.new("RGB", (40, 40)).save(place / "photos" / "a.png")
    (place / "c.csv").write_text("filename,caption\na.png,a dog\n")
    (place / "headonly.csv").write_text("filename,caption\n")
    (place / "world" / "train").mkdir(parents=True)
    (place / "world" / "suite").mkdir()
    Image.new("RGB", (40, 40)).save(place / "world" / "suite" / "a.png")
    with tarfile.open(place / "world" / "train" / "train-000000.tar", "w"):
        pass
    (place / "t.txt").write_text("a dog\n")
    (place / "zero.csv").write_text("")
    for name in ("a", "b"):
        (place / "two" / name).mkdir(parents=True)
        (place / "two" / name / "sugarcrepe.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input="\n".join([*REFUSED, *HELPS]),
        capture_output=True,
        text=True,
        check=True,
        cwd=place,
    )
    parts = [part.splitlines() for part in f"\n{done.stderr}".split("\n$ ")[1:]]
    return {command: lines for command, *lines in parts}


@pytest.mark.parametrize("command", REFUSED)
def test_a_mistake_is_one_line_before_torch_is_loaded(
    answers: dict[str, list[str]], command: str
) -> None:
    *lines, code = answers[command]
    assert REFUSED[command] in lines[-1]
    assert code in ("exit 1", "exit 2")
    assert len(lines) == 1


def test_help_needs_no_torch(answers: dict[str, list[str]]) -> None:
    assert {command: answers[command] for command in HELPS if answers[command] != ["exit 0"]} == {}


def test_every_verb_has_such_a_mistake() -> None:
    assert {line.split()[0] for line in REFUSED} == {*all_verbs().table}
    tasks = {line.split()[1] for line in REFUSED if line.startswith("data ")}
    assert tasks == {*TASKS.table}


def test_tags_of_published_weights_are_those_of_open_clip() -> None:
    code = (
        "from compoclip.models.names import architectures, tags_of\n"
        "read = {name: tags_of(name) for name in architectures()}\n"
        "import open_clip\n"
        "assert read == {name: tags_of(name) for name in architectures()}\n"
        "assert read['ViT-B-32-quickgelu'] and 'openai' in read['ViT-B-32']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--learning-rate 1e-3", "did you mean --lr?"),
        ("--batchsize 8", "did you mean --batch-size?"),
        ("--bs 8", "did you mean --batch-size?"),
        ("--per_device_train_batch_size 8", "did you mean --batch-size?"),
        ("--output o", "did you mean --out?"),
        ("--epoch 1", "did you mean --epochs?"),
        ("--num-train-epochs 1", "did you mean --epochs?"),
        ("--train-data x", "did you mean --data?"),
        ("--csv-img-key x", "did you mean --image-column?"),
        ("--accum-freq 2", "did you mean --micro-batch?"),
        ("--max-bad 3", "--max-bad is a key: write --set max_bad=VALUE"),
        ("--max_grad_norm 1", "--max-grad-norm is a key: write --set clip_grad=VALUE"),
        ("--epoch 1 --bs 2", "did you mean --epochs?; did you mean --batch-size?"),
    ],
)
def test_names_of_other_programs(capsys: pytest.CaptureFixture[str], words: str, hint: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "clip-ft", "--data", "x", "--out", "y", *words.split()])
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "ours"), [("finetune", "train or tune"), ("eval", "evaluate")])
def test_verbs_of_other_programs(capsys: pytest.CaptureFixture[str], verb: str, ours: str) -> None:
    assert main([verb]) == 2
    assert f"no verb '{verb}'; did you mean {ours}?" in capsys.readouterr().err


def test_no_names_here_is_a_name_of_another_option() -> None:
    from compoclip.config import options_of

    known = options_of(TrainOptions)
    assert [name for name in known if names_here(name, "options", known) not in ((), (name,))] == []


def test_help_of_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", "evaluate"])
    assert "usage: compoclip evaluate" in capsys.readouterr().out


def test_a_script_without_a_main_guard_is_named_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "from compoclip.process import require_main_guard\n"
        "require_main_guard('fork')\n"
        "require_main_guard('spawn')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert f"{script}: every worker process runs this script again" in done.stderr
    script.write_text(f"{script.read_text()}if __name__ == '__main__': print('guarded')\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stdout == "guarded\n"


def test_what_people_guess_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photos = tmp_path / "photos"
    photos.mkdir()
    for place, colour in enumerate(("red", "green", "blue")):
        Image.new("RGB", (40, 40), colour).save(photos / f"{place}.png")
    rows = "".join(f"{n}.png,a {c} square\n" for n, c in enumerate(("red", "green", "blue")))
    Path("captions.csv").write_text(f"filename,caption\n{rows}")

    model = compoclip.load()
    assert "M parameters, 256 dimensions" in repr(model)
    one = model.score(str(photos / "0.png"), "a red square")
    assert one.shape == (1, 1)
    assert np.array_equal(one, model.similarity([photos / "0.png"], ["a red square"]))
    assert model.encode_text("a dog").shape == model.encode_texts(["a dog"]).shape == (1, 256)
    assert model.encode_images(str(photos)).shape == (3, 256)
    assert model.encode_image(Image.new("RGB", (40, 40))).shape == (1, 256)
    assert "fsc-clip" in compoclip.list_methods()
    assert "sugarcrepe" in compoclip.list_benchmarks()

    target = "retrieval:captions.csv,images=photos"
    results = compoclip.evaluate(model, target, resamples=20)
    again = model.evaluate(on=[target], name="again", resamples=20)
    assert "retrieval" in repr(results)
    assert "<pre>" in results._repr_html_()
    assert results[0].scores == again[0].scores
    compared = compoclip.compare("results/bundled", "results/again", resamples=20)
    assert "difference" in repr(compared)
    assert compoclip.compare(results, again, resamples=20)[0].base == compared[0].base
    assert compoclip.report("results", resamples=20) == Path("report.html")
    index = compoclip.index("photos", model=model)
    found = compoclip.search("photos.index", "a red square")
    assert found[0].hits[0].photo in index.names
    assert "rank" in repr(found)
    with pytest.raises(compoclip.UsageError, match="model"):
        compoclip.tune("captions.csv", images="photos", out="x")
    with pytest.raises(compoclip.UsageError, match="no option 'resample'; did you mean resamples"):
        compoclip.evaluate(model, target, resample=20)


def parsers(monkeypatch: pytest.MonkeyPatch) -> dict[str, OptionParser]:
    """Return the parser of the options of every command, by its program."""
    found = {}

    def help_of(parser: OptionParser, file: object = None) -> None:
        found[parser.prog] = parser

    monkeypatch.setattr(OptionParser, "print_help", help_of)
    tasks = [["data", task] for task in TASKS.table]
    verbs = [[verb] for verb in VERBS if verb not in ("data", "train", "sweep")]
    for words in (*tasks, *verbs, ["train", "fsc-clip"], ["sweep", "clip-ft"]):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
    return found


def test_names_of_other_programs_are_hinted_at_by_every_verb(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = yaml.safe_load(files("compoclip").joinpath("other_names.yaml").read_text())
    assert all(isinstance(name, str) for name in (*table["options"], *table["verbs"]))
    missing = []
    hints = 0
    for program, parser in parsers(monkeypatch).items():
        options = {**parser.options, **parser.keys}
        for name, others in table["options"].items():
            for other in others if name in options else ():
                if other.replace("-", "_") in options:
                    continue  # an option of another meaning, such as --base of report
                with pytest.raises(SystemExit):
                    parser.error(f"unrecognized arguments: --{other} x")
                said = capsys.readouterr().err
                option = options[name]
                place = option.usage.metavar.split()[0] if option.usage.positional else option.flag
                hints += 1
                if place not in said and f"--set {name}=" not in said:
                    missing.append((program, other, said))
    assert missing == []
    assert hints > 500
