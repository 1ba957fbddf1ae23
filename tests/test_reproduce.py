"""`compoclip reproduce` from download to bundle on made files, killed and resumed."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from rehearse import Rehearsal, expecting

from build.tables import write_json
from compoclip.benchmarks.names import SUITES
from compoclip.benchmarks.registry import meta
from compoclip.cli.main import main
from compoclip.config import parsed_config
from compoclip.data.fingerprint import FILE
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.plan_page import stated
from compoclip.evaluation.published.protocols import protocol, protocol_names
from compoclip.evaluation.published.read import published_table
from compoclip.evaluation.verify import _unplanned, verify_bundle
from compoclip.models.checkpoint import create_model, load_model, save_model
from compoclip.models.config import read_config
from compoclip.programs import reproduce
from compoclip.programs.estimate import MachineSpeed, without_weights
from compoclip.programs.reproduce import ReproduceOptions, make_plan
from train_helpers import FEW, write_config

Capture = pytest.CaptureFixture[str]
SPEED = MachineSpeed(
    step=0.5, image=0.01, fixed=2e9, per_image=5e7, again=1.5, photo=0.005, text=0.001,
    parameters=150_000_000,
)  # fmt: skip


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    folder = tmp_path_factory.mktemp("rehearsal")
    model = create_model(read_config(write_config(folder / "tiny.json", merges=FEW)))
    save_model(model, folder / "tiny")
    weights = {each.name: each.read_bytes() for each in (folder / "tiny").iterdir()}
    run = {"recipe": "negclip", "model": "hf-hub:made/tiny", "batch": 4, "epochs": 3}
    return Rehearsal(folder, None, weights, "made/tiny", 24, **run)


@pytest.fixture
def site(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from huggingface_hub import constants

    made = expecting(rehearsal.expected, rehearsal.official)
    with made, rehearsal.served() as (url, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        endpoint = environment["HF_ENDPOINT"]
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", f"{environment['HF_HOME']}/hub")
        yield url


class Killed(BaseException):
    """Raised at a random moment, where SIGKILL would end the process."""


def test_from_download_to_bundle_with_ten_kills(
    rehearsal: Rehearsal, site: str, tmp_path: Path, capsys: Capture
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    begin = time.process_time()
    assert main(rehearsal.arguments(whole, site)) == 0
    seconds = time.process_time() - begin
    printed = capsys.readouterr()
    assert "memory" in printed.err
    assert "95 % interval" in printed.out
    for folder in ("coco", "sugarcrepe"):  # what was fetched is fetched again
        shutil.rmtree(rehearsal.protocol.parent / "data" / folder)
    out.mkdir()  # planned as before, so that no kill is spent on the measurement
    plan = json.loads((whole / "plan.json").read_text())
    del plan["weights"]
    (out / "plan.json").write_text(json.dumps(plan))
    shutil.copy(whole / FILE, out)
    words = rehearsal.arguments(out, site)

    def kill(number: int, frame: FrameType | None) -> None:
        fired.append(number)
        signal.setitimer(signal.ITIMER_PROF, 0.1)  # again, if a destructor swallows this one
        raise Killed

    fired: list[int] = []
    before = signal.signal(signal.SIGPROF, kill)
    rng, kills = random.Random(1), 0
    try:
        while not (out / "rehearsal.zip").exists():
            if kills < 10:
                signal.setitimer(signal.ITIMER_PROF, rng.uniform(0.01, seconds / 8))
            fired.clear()
            try:
                code = main(words)
            except Killed:
                code = 1
                torch.set_grad_enabled(True)  # which ends with a process that is really killed
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            assert code == 0 or fired  # torch turns what is raised inside of it into its own errors
            kills += bool(fired)
    finally:
        signal.signal(signal.SIGPROF, before)
    assert kills >= 5
    one, other = (load_model(str(each / "run" / "model")).identity for each in (whole, out))
    assert one == other  # the same weights as without a kill
    report = verify_bundle(out / "rehearsal.zip")
    assert report.wrong == []
    plan = json.loads((out / "plan.json").read_text())
    assert plan["weights"].startswith("sha256 ")
    assert plan["downloads"]["coco/val2014"]["checked_by"] == "its md5 checksum"
    page = (out / "page.md").read_text()
    assert "| SugarCrepe | 73.1 |" in page
    assert "training took" in page
    with zipfile.ZipFile(out / "rehearsal.zip") as bundle:
        assert bundle.read("page.md").decode().startswith("# rehearsal")
        config = parsed_config(bundle.read("run/config.yaml").decode(), Path("config.yaml"))
    assert list(_unplanned(plan, config)) == []
    changed = {**plan, "settings": {**plan["settings"], "batch_size": 8}}
    assert list(_unplanned(changed, config)) == [
        "run/config.yaml: batch_size is 4, the protocol rehearsal has 8"
    ]
    claimed = {**plan, "protocol": "fsc-clip"}
    assert "run/config.yaml: method is negclip, the protocol fsc-clip has fsc-clip" in list(
        _unplanned(claimed, config)
    )
    with pytest.raises(UsageError, match=r"holds rehearsal \(protocol.*choose another --out"):
        reproduce.reproduce(
            ReproduceOptions(name="negclip", out=out), lambda plan: True, lambda job: None
        )
    spoilt = {"[]": "expected a JSON object", '{"name": "rehearsal"}': "needs name, protocol"}
    for text, problem in spoilt.items():
        (out / "plan.json").write_text(text)
        assert main(words) == 1
        error = capsys.readouterr().err
        assert problem in error
        assert error.rstrip().endswith("delete it to plan anew")


def test_every_protocol_names_what_there_is() -> None:
    for name in protocol_names():
        assert name in str(ReproduceOptions.__doc__)
        found = protocol(name)
        rows = {row.labels for row in published_table(found.table).rows}
        assert found.base in rows
        assert found.row in rows or found.row == ()
        for spec in (*found.benchmarks, *found.small):
            for each in SUITES.get(spec, (spec,)):
                meta(each.partition(":")[0])
        assert found.data.by_hand or found.data.photos
    with pytest.raises(UsageError, match=r"no protocol 'fsc'.*fsc-clip"):
        protocol("fsc")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: not YAML"),
        ("- a", "not a list of protocols"),
        ("_data: {}", r"expected one NAME.*, holds \[\]"),
        ("mine: {}\nother: {}", r"expected one NAME.*, holds \['mine', 'other'\]"),
        ("_dat: {}\nmine: {recipe: negclip}", "unknown field '_dat'"),
        ("mine: {recipe: negclip}\nmine: {recipe: negclip}", "line 2: .*'mine' is there twice"),
        ("mine:\n  recipe: clip\n  recipe: negclip", "line 3: .*'recipe' is there twice"),
        ("mine: &a {recipe: negclip}\nother: {<<: *a}", "line 1: .*anchors"),
        ("mine: {recipe: negclip}", "mine is malformed"),
        ("mine: {recipe: negclip, data: none}", "mine is malformed"),
        ("mine: {recipe: 3, model: m, data: coco, table: t, base: [], row: [], benchmarks: [], "
         "small: []}", "recipe must be a text, found 3 \\(int\\)"),
        ("mine: {recipe: r, model: m, data: coco, table: t, base: [], row: [], benchmarks: [], "
         "small: [], more: 1}", "unknown field 'more'"),
    ],
)  # fmt: skip
def test_malformed_protocols(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(CompoclipError, match=message):
        protocol(str(path))
    with pytest.raises(CompoclipError, match=r"no such file|cannot be read"):
        protocol(str(tmp_path / "none.yaml"))


def planned(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str = "fsc-clip",
    memory: float = 1e11,
    **options: Any,
) -> dict[str, Any]:
    """The plan on a machine of `SPEED` with 1 TB of disk and 100 GB of memory."""
    usage = type("usage", (), {"free": 10**12})
    monkeypatch.setattr("compoclip.programs.estimate.measure", lambda *_: SPEED)
    monkeypatch.setattr("compoclip.programs.estimate._memory", lambda device: memory)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    data = tmp_path / "data"
    options = {"yes": True, **options}
    return make_plan(
        ReproduceOptions(name=name, out=tmp_path / "o", data=data, device="cpu", **options)
    )


def test_the_estimate_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, monkeypatch, on=("sugarcrepe", "winoground"))
    cost = plan["estimate"]
    # 5 epochs of 442 whole batches of 256: 2210 steps of 0.5 s and 256 images of 0.01 s
    assert cost["training_seconds"] == pytest.approx(2210 * (0.5 + 2.56))
    # two models: 1,560 photos of 5 ms and 11,844 texts of 1 ms
    assert cost["evaluating_seconds"] == pytest.approx(2 * (1560 * 0.005 + 11844 * 0.001), abs=0.1)
    assert cost["memory_bytes"] == 2e9 + 256 * 5e7
    assert plan["settings"]["micro_batch"] == 0
    archives = 815585330 + 13510573713 + 6645013297  # val2017, train2014, val2014
    annotations = sum(s.size for s in meta("sugarcrepe").remote if not s.archive)
    assert cost["download_bytes"] == archives + annotations + 4 * 150_000_000
    assert cost["unknown_sizes"] == 1  # the captions
    assert plan["benchmarks"] == ["sugarcrepe"]
    assert "accept the terms" in plan["left_out"]["winoground"]
    told = dict(stated(plan))
    assert told["time"].startswith("1.9 h to train, 39 s to measure")
    assert "and 1 file of unknown size" in str(told)
    assert "not the published protocol" not in told["training"]
    assert plan["downloads"]["coco/coco_karpathy_train.json"]["checked_by"] == "its md5 checksum"


def test_speed_is_measured_without_published_weights() -> None:
    assert without_weights("ViT-B-32-quickgelu:openai") == "random:ViT-B-32-quickgelu"
    for model in (
        "bundled",
        "local-dir:runs/a/model",
        "hf-hub:laion/a",
        "random:ViT-B-32",
        "ViT@f",
    ):
        assert without_weights(model) == model


def test_a_part_is_estimated_by_its_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, monkeypatch, on=("sugarcrepe:swap_obj",))
    # 245 items of 7,511: as many photos at most, and their share of 11,844 texts
    seconds = 2 * (245 * 0.005 + 386 * 0.001)
    assert plan["estimate"]["evaluating_seconds"] == pytest.approx(seconds, abs=0.1)


def test_little_memory_means_parts_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, monkeypatch, on=("sugarcrepe",), memory=6e9)
    assert plan["settings"]["micro_batch"] == 64  # 2 GB + 64 x 50 MB of 90 % of 6 GB
    assert plan["estimate"]["memory_bytes"] == 2e9 + 64 * 5e7
    assert plan["estimate"]["training_seconds"] == pytest.approx(2210 * 1.5 * 3.06)
    with pytest.raises(CompoclipError, match="one image needs more"):
        planned(tmp_path, monkeypatch, on=("sugarcrepe",), memory=1e9)


def test_a_budget_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, monkeypatch, budget="20m", on=("sugarcrepe",))
    # 1,200 s less 39.3 s; a photo takes 5 x (0.01 + 0.5 / 256) = 0.0598 s: 16,000 take 956 s
    assert (plan["name"], plan["photos"]) == ("fsc-clip-16000-fp32", 16000)
    assert plan["folders"] == ["coco/val2014"]
    assert "not the published protocol" in dict(stated(plan))["training"]
    with pytest.raises(CompoclipError, match="500 photos, the fewest"):
        planned(tmp_path, monkeypatch, budget="1m", on=("sugarcrepe",))


def test_the_name_of_a_plan_is_that_of_a_file(tmp_path: Path) -> None:
    options = ReproduceOptions(name="negclip", out=tmp_path)
    reproduce._inputs(options).save(tmp_path)
    texts = ("protocol", "recipe", "model", "table", "captions", "images", "device", "weights")
    plan = {**dict.fromkeys(texts, "x"), "name": "../x", "settings": {}, "photos": 1}
    plan |= {key: [] for key in ("benchmarks", "folders", "base", "row")}
    plan |= {key: {} for key in ("published", "downloads", "estimate", "speed", "left_out")}
    plan |= {"of_photos": 1, "save_every": 1}
    name = r"\.\./x: no name for a file; rename the protocol"
    more = r".*plan\.json: unknown field 'seeds' \(str\); delete it to plan anew"
    for change, message in (({}, name), ({"seeds": 3}, more)):
        write_json(tmp_path / "plan.json", {**plan, **change})
        with pytest.raises(CompoclipError, match=f"^{message}$"):
            reproduce.reproduce(options, lambda plan: True, lambda job: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--on sugarcrepe,annotations=absent --yes", "absent"),
        ("--on sugarcrepe,annotations=damaged,images=. --yes", "damaged"),
        ("--on sugarcrepe winoground,annotations=absent --yes", "absent"),
        ("--captions absent.csv --yes", "absent.csv: not found"),
        ("--captions empty.csv --yes", "empty.csv"),
        ("--captions columns.csv --yes", "columns.csv"),
        ("--captions captions.csv --images absent --yes", "absent: no such folder"),
        ("--budget 6x --yes", "write minutes, hours or days"),
        ("--budget 0m --yes", "write minutes, hours or days"),
        ("--device cuda:7 --yes", "--device cuda:7"),
        ("--on winoground --yes", "nothing to measure on"),
        ("", "there is no terminal to ask for it"),
    ],
)
def test_faults_are_said_before_the_estimate(
    options: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "empty.csv": "",
        "columns.csv": "a,b\n1,2\n",
        "captions.csv": "image,caption\na.jpg,a cat\n",
        "damaged/swap_obj.json": "{",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def never(*_: object) -> MachineSpeed:
        raise AssertionError("measured")

    monkeypatch.setattr("compoclip.programs.estimate.measure", never)
    assert main(["reproduce", "fsc-clip", "--out", "out", *options.split()]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert "for the estimate" not in error


def test_data_by_hand_have_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"RedCaps.*--captions and --images"):
        planned(tmp_path, monkeypatch, "clic")


def test_the_photos_of_a_smaller_protocol(tmp_path: Path) -> None:
    captions = tmp_path / "captions.json"
    names = [f"{folder}/{k}.jpg" for k in range(20) for folder in ("train2014", "val2014")]
    captions.write_text(json.dumps([{"image": each, "caption": "a cat"} for each in names]))
    plan = {"name": "p-8-fp32", "protocol": "p", "captions": str(captions), "photos": 8}
    plan |= {"images": str(tmp_path), "folders": ["coco/val2014"]}
    from compoclip.data.sources.open import open_source

    (tmp_path / "out").mkdir()
    chosen = list(open_source(reproduce._training_data(plan, tmp_path / "out")).column("id"))
    assert len(chosen) == 8
    before = (tmp_path / "out" / "photos.json").stat()
    reproduce._training_data(plan, tmp_path / "out")
    assert (tmp_path / "out" / "photos.json").stat() == before
    reproduce._training_data({**plan, "photos": 4}, tmp_path / "out")  # what was there is not used
    fewer = json.loads((tmp_path / "out" / "photos.json").read_text())["without"]
    assert len(names) - len(fewer) == 4
    assert all(each.startswith("val2014/") for each in chosen)
    more = {**plan, "photos": 16}
    (tmp_path / "more").mkdir()
    larger = list(open_source(reproduce._training_data(more, tmp_path / "more")).column("id"))
    assert {*chosen} < {*larger}  # a larger protocol holds the photos of a smaller one
    with pytest.raises(CompoclipError, match="fewer than 32 photos"):
        reproduce._training_data({**plan, "photos": 32}, tmp_path)


def test_weights_of_another_content_are_refused(
    site: str, rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reproduce.verified_weights("hf-hub:made/tiny").startswith("sha256 ")
    monkeypatch.setattr(reproduce, "file_hash", lambda *_: "0" * 64)
    with pytest.raises(CompoclipError, match="not the file that the hub has"):
        reproduce.verified_weights("hf-hub:made/tiny")
