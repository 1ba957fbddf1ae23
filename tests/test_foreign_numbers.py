"""Numbers in the files of strangers, each set to what it cannot be: the file is read, or refused.

Refused is one line that names the file. Memory and time of the processor are bounded here, so a
number that is used as an amount before it is checked ends the test.
"""

from __future__ import annotations

import json
import math
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from compoclip.benchmarks.photo_set import read_coco
from compoclip.benchmarks.retrieval import read_captions
from compoclip.benchmarks.targets import read_suite
from compoclip.cli.caption_input import read_captions as read_all_captions
from compoclip.config import checked, options_of, read_config
from compoclip.data.fingerprint import _VERSION as FINGERPRINTS
from compoclip.data.fingerprint import FILE, Fingerprint
from compoclip.data.overlap import held_out_photos
from compoclip.data.pack import PackSummary
from compoclip.data.sources.open import open_source
from compoclip.data.written import read_bags, read_units, read_written_texts
from compoclip.errors import CompoclipError
from compoclip.evaluation.comparison import compare_all
from compoclip.evaluation.results import load_results
from compoclip.files import read_json, save_arrays
from compoclip.methods.registry import recipe_card
from compoclip.models.checkpoint import create_model, load_model, save_model
from compoclip.models.config import read_config as read_model_config
from compoclip.models.config import read_record
from compoclip.models.formats.adapters import read_adapter_record, read_peft, save_adapter
from compoclip.models.lora import Lora, attach_lora
from compoclip.programs.run import TrainOptions
from compoclip.report.training import read_run
from compoclip.search.index import _VERSION, read_index
from compoclip.training.state import Progress, load_state, save_state
from compoclip.typed import build
from lab.own_boxes import coco_boxes
from report_study import make_run, make_study
from test_state_files import PROGRESS, learner
from train_helpers import write_config

ODD = (0, -1, 10**9, 10**18, 1e308, math.nan, 10**400, True, "7")
MEMORY = 1 << 30  # beyond what the process has
SECONDS = 5.0  # of the processor, for one file

Place = tuple[str | int, ...]


def numbers_of(value: Any, place: Place = ()) -> Iterator[Place]:
    """The places of the numbers of a JSON value, one of those with the same first and last name."""
    seen = set()
    for way in _numbers(value, place):
        names = [key for key in way if isinstance(key, str)]
        kind = (*names[:1], *names[-1:])
        if kind not in seen:
            seen.add(kind)
            yield way


def _numbers(value: Any, place: Place = ()) -> Iterator[Place]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(part, (*place, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


def with_number(data: Any, place: Place, number: Any) -> Any:
    """A copy of the data with another value at a place."""
    if not place:
        return number
    changed = inner = deepcopy(data)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = number
    return changed


@contextmanager
def bounded() -> Iterator[None]:
    """Let the block take a gigabyte more than there is, and a few seconds of the processor."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    usual = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, usual[1]))

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s of the processor")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, usual)


def fault_of(read: Callable[[], object], file: Path) -> str:
    """Return the fault in how a file is read or refused; "" without one."""
    try:
        with bounded(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            read()
    except CompoclipError as error:
        line = str(error)
        names = any(name in line for name in (file.name, file.stem, str(file.parent)))
        return "" if names and "\n" not in line and len(line) < 1000 else f"says: {line[:300]}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


class Foreign(NamedTuple):
    """A file with numbers: its content, how it is written, and what reads and uses it."""

    file: Path
    content: Any
    read: Callable[[Path], object]
    write: Callable[[Path, Any], object]


def as_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def as_lines(path: Path, content: Any) -> None:
    rows = content if isinstance(content, list) else [content]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def read_pack_summary(path: Path) -> Any:
    return build(PackSummary, read_json(path), str(path), "pack again")


def as_index(path: Path, about: Any) -> None:
    texts = {"names": "a.png\0", "stamps": "1-2\0", "captions": "\0"}
    texts["about"] = json.dumps(about) + "\0"
    arrays = {name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()}
    save_arrays(path, {**arrays, "features": np.ones((1, 4), np.float16)}, _VERSION)


def as_fingerprint(path: Path, values: Any) -> None:
    arrays = {"values": np.frombuffer(json.dumps(values).encode(), np.uint8)}
    save_arrays(path, arrays, FINGERPRINTS)


PHOTO = {"id": 1, "file_name": "a.png", "width": 8, "height": 8}
BOX = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 3, 3], "iscrowd": 0, "area": 9.0}
COCO = {"images": [PHOTO], "annotations": [BOX], "categories": [{"id": 1, "name": "dog"}]}
SAID = {"images": [PHOTO], "annotations": [{"id": 1, "image_id": 1, "caption": "a dog"}]}
SENTENCE = {"raw": "a dog", "tokens": ["a", "dog"], "sentid": 0, "imgid": 0}
KARPATHY_PHOTO: dict[str, Any] = {
    "filename": "COCO_val2014_000000000001.jpg",
    "filepath": "val2014",
}
KARPATHY_PHOTO |= {"cocoid": 1, "imgid": 0, "split": "test", "sentids": [0]}
KARPATHY = {"images": [{**KARPATHY_PHOTO, "sentences": [SENTENCE]}]}
ROW = {"image": "a.png", "caption": "a dog", "score": 0.5, "image_score": 0.5, "mirror": 0}
ROW |= {"id": 1, "group": 1, "neg_image": [0]}
PACKED = {"shards": 1, "samples": 3, "scaled": 1, "as_they_were": 2, "size_bytes": 9}
PACKED |= {"left_out": {"no caption": 1}, "bad": {}}
BAG = {"id": 1, "sentences": ["a dog", "a cat"], "weight": 1}
UNIT = {"original_caption": "a dog on a mat", "entities": ["dog"], "score": 0.5, "id": 3}
SUITE = {"benchmarks": [{"name": "retrieval:flickr30k", "options": {"pairs": 3, "words": 4}}]}
ABOUT: dict[str, Any] = {"identity": {"image_size": [8, 8]}, "model": "bundled", "scale": 2.0}
ABOUT |= {"text_tower": None, "bias": 0.0, "root": "/", "upright": True, "source": {"spec": "a"}}
ABOUT |= {"left_out": {"hidden file": 1}, "unreadable": {}, "changes": {"encoded": 1}}
ABOUT["calibration"] = {"threshold": 0.2, "captions": 3, "missed": 0.1, "noticed": 0.5}
ABOUT["calibration"]["left_out"] = 0


def count_photos(path: Path, **options: Any) -> None:
    """Open image-text data and read all its columns."""
    source = open_source(str(path), **options)
    for row in range(len(source)):
        source[row]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, an adapter, results of two models and a run."""
    folder = tmp_path_factory.mktemp("made")
    thin = read_model_config(write_config(folder / "config.json", merges=100))
    save_model(create_model(thin, seed=1), folder / "model")
    loaded = load_model(folder / "model")
    lora = Lora(rank=2)
    attach_lora(loaded.encoder.model, lora)
    save_adapter(loaded, lora, folder / "adapter", provenance={"run": {"steps": 3}})
    make_study(folder, photos=8, models=("base", "negclip"), resamples=10)
    for path in (folder / "results").glob("*/*.*"):
        if path.stem != "hard_positives":
            path.unlink()
    make_run(folder, "run", steps=3)
    model, optimizer = learner()
    save_state(folder / "state", model, optimizer, PROGRESS)
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    return folder


def _state(path: Path) -> Progress:
    return load_state(path.parent, *learner(), steps_per_epoch=3)


def foreign_files(made: Path) -> dict[str, Foreign]:
    """The files by what they are."""
    network = load_model(made / "model").encoder.model
    state = made / "state" / "step-00000007"
    results = made / "results" / "negclip" / "hard_positives.json"
    run, adapter = made / "run", made / "adapter"
    log = run / "train.jsonl"
    base = load_results(made / "results" / "base")
    by_read: dict[str, tuple[Path, Any, Callable[[Path], object]]] = {
        "record of a model": (made / "model/compoclip.json", None, read_record),
        "model": (made / "model/open_clip_config.json", None, lambda p: load_model(p.parent)),
        "PEFT": (adapter / "adapter_config.json", None, lambda p: read_peft(p.parent, network)),
        "adapter": (adapter / "adapter.json", None, lambda p: read_adapter_record(p.parent)),
        "results": (results, None, lambda p: compare_all(base, [load_results(p)])),
        "record of a run": (run / "model/compoclip.json", None, lambda p: read_run(run)),
        "state": (state / "progress.json", None, _state),
        "COCO boxes": (made / "boxes.json", COCO, coco_boxes),
        "COCO labels": (made / "labels.json", COCO, read_coco),
        "COCO captions": (made / "captions.json", SAID, partial(count_photos, images=made)),
        "Karpathy": (made / "dataset.json", KARPATHY, held_out_photos),
        "Karpathy captions": (made / "dataset_coco.json", KARPATHY, read_captions),
        "captions of all": (made / "all.json", [{"caption": "a", "n": 1}], read_all_captions),
        "suite": (made / "suite.json", SUITE, lambda p: [each.options for each in read_suite(p)]),
        "pack": (made / "pack.json", PACKED, read_pack_summary),
        "units": (made / "units.json", [UNIT], read_units),
    }
    found = {
        name: Foreign(
            file, json.loads(file.read_text()) if content is None else content, read, as_json
        )
        for name, (file, content, read) in by_read.items()
    }
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    rows.append({"step": 40, "eval": {"b": {"value": 0.5, "low": 0.4, "high": 0.6, "chance": 0.5}}})
    found["log"] = Foreign(log, rows, lambda p: read_run(p.parent), as_lines)
    for name, row, read in (
        ("bags", BAG, read_bags),
        ("written", {"caption": "a", "negative": "b", "n": 1}, read_written_texts),
        ("rows", ROW, partial(count_photos, images=made)),
    ):
        found[name] = Foreign(made / f"{name}.jsonl", [row], read, as_lines)
    found["index"] = Foreign(made / "photos.index", ABOUT, read_index, as_index)
    found["fingerprint"] = Foreign(
        made / FILE, {"seed": 0}, lambda p: Fingerprint.load(p.parent), as_fingerprint
    )
    values = {"lr": 1e-5, "batch_size": 4, "epochs": 3, "seed": 0, "save_every": 10, "workers": 1}
    options = {**options_of(TrainOptions), **recipe_card("negclip").options}
    found["options"] = Foreign(
        made / "train.yaml", values, lambda p: checked(p, read_config(p), options, "x"), as_json
    )
    return found


NAMES = ["record of a model", "model", "PEFT", "adapter", "results", "record of a run", "state"]
NAMES += ["COCO boxes", "COCO labels", "COCO captions", "Karpathy", "Karpathy captions"]
NAMES += ["captions of all", "suite", "pack", "units", "log", "bags", "written", "rows", "index"]
NAMES += ["fingerprint", "options"]


@pytest.fixture(scope="module")
def files(made: Path) -> dict[str, Foreign]:
    found = foreign_files(made)
    assert [*found] == NAMES
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_number_is_taken_or_refused(name: str, files: dict[str, Foreign]) -> None:
    file, content, read, write = files[name]
    write(file, content)
    assert fault_of(partial(read, file), file) == ""
    read(file)
    places = [*numbers_of(content), ()]
    faults = []
    for place in places:
        for odd in ODD:
            write(file, with_number(content, place, odd))
            if fault := fault_of(partial(read, file), file):
                faults.append(f"{'.'.join(map(str, place))} = {str(odd)[:12]}: {fault}")
    write(file, content)
    assert faults == [], f"{len(faults)} of {len(places) * len(ODD)}:\n" + "\n".join(faults)


@pytest.mark.parametrize("place", [("samples",), ("size_bytes",), ("left_out", "no caption")])
def test_a_pack_counts_from_zero(place: Place) -> None:
    with pytest.raises(CompoclipError, match=rf"{place[-1]} must not be negative, found -1"):
        build(PackSummary, with_number(PACKED, place, -1), "pack.json", "pack again")


def test_results_leave_out_no_less_than_nothing(made: Path) -> None:
    (path,) = (made / "results" / "base").glob("*.json")
    data = {**json.loads(path.read_text()), "left_out": {"no caption": -1}}
    path = path.with_name("negative.json")
    path.write_text(json.dumps(data))
    with pytest.raises(CompoclipError, match=r"left_out.no caption must not be negative"):
        load_results(path)
    path.unlink()
