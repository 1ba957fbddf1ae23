"""What every benchmark of the catalogue yields on given files, and that spoilt ones are refused.

COMPOCLIP_WRITE_GOLDEN=1 records it anew; look at what changes before keeping it. Texts of the made
files come from the world, and a few items from the tagger and the rewrites: a change of these
changes the digests of the benchmarks that use them. What a guess, a constant and the oracle get on
the same benchmarks: test_evaluation_chance.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import made_suite, suite_targets
from compoclip.benchmarks import files
from compoclip.benchmarks.case import Benchmark, image_key
from compoclip.benchmarks.names import benchmark_names
from compoclip.benchmarks.registry import meta, reader, require_present
from compoclip.benchmarks.targets import Target
from compoclip.errors import CompoclipError
from compoclip.typed import kind_named
from official import BUILDERS
from test_benchmarks_property import OWN, WRITERS

GOLDEN = Path(__file__).with_name("golden") / "benchmarks" / "items.json"
WRITE = bool(os.environ.get("COMPOCLIP_WRITE_GOLDEN"))
RECORD = "record the items: COMPOCLIP_WRITE_GOLDEN=1 pytest -n0 tests/test_benchmarks_golden.py"
OFFICIAL = ("sugarcrepe", "sugarcrepe_pp", "sugarcrepe_pp_tot", "valse", "cola", "vsr")
Recorded = dict[str, Any]


def digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def outline(found: Benchmark, root: Path) -> Recorded:
    """What a loaded benchmark holds, with images named relative to the data root."""
    content = found.content
    names = [image_key(ref).replace(str(root), "ROOT") for ref in content.images]
    cases = [
        (case.id, case.form, len(case.images), case.texts, case.subtask, case.truth, case.labels)
        for case in content.cases
    ]
    rules = {name: asdict(rule) for name, rule in found.aggregates.items()}
    return {
        "name": found.name,
        "counts": content.counts(),
        "items": digest([cases, names, content.texts]),
        "rules": digest([list(rules), rules]),
        "headline": found.headline,
        "ties": found.ties,
        "left_out": found.left_out,
        "other": digest([found.skills, found.expected, found.joint, found.tuned_on]),
        "hashed": digest(found.data_hash),
    }


@cache
def official(name: str, root: Path) -> Benchmark:
    """Load a benchmark from its official files, once."""
    return Target(name, root).load()


def outlines(target: Target, moving: bool = True) -> dict[str, Recorded]:
    """The benchmark as it is, by its first sub-task, and with each place of photos moved."""
    name = target.spec.partition(":")[0]
    if meta(name).family:
        return {"whole": outline(target.load(), target.root)}
    whole = target.load() if moving else official(name, target.root)
    found = {"whole": outline(whole, target.root)}
    if moving:
        moved = [Target(target.spec, target.root, target.root / "all", options=target.options)]
        for key in (key for key in reader(name).options if key.endswith("_images")):
            options = {**target.options, key: target.root / "moved"}
            moved.append(Target(target.spec, target.root, target.images, options=options))
        listed = [outline(each.load(), target.root) for each in moved]
        found["moved"] = {"digest": digest(listed)}
    parts = [each for each in meta(name).parts if each in whole.content.counts()]
    if meta(name).parts:
        part = Target(f"{name}:{parts[0]}", target.root, target.images, options=target.options)
        found["part"] = {"digest": digest(outline(part.load(), target.root))}
    return found


def test_items_of_own_captions_and_boxes(tmp_path: Path) -> None:
    """Their code lies in files beside the package, so that the data hash holds its digest."""
    found = {}
    for name, (spec, write) in OWN.items():
        root = tmp_path / name
        root.mkdir()
        path = write(root)
        options = {"annotations": path} if name == "lines" else {}
        whole = outline(Target(spec, root, options=options).load(), root)
        del whole["hashed"]
        found[f"{whole['name']} of {name}"] = whole
    compare("lab", found)


def compare(section: str, found: dict[str, Any]) -> None:
    found = json.loads(json.dumps(found, default=str))
    known = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.is_file() else {}
    if WRITE:
        text = json.dumps({**known, section: found}, indent=1, sort_keys=True) + "\n"
        GOLDEN.write_text(text, encoding="utf-8")
        known[section] = found
    assert found == known[section], RECORD


@pytest.fixture(autouse=True)
def _names_of_files_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data hash tells the names of the files, not their bytes, which other versions may pack
    otherwise."""
    monkeypatch.setattr(files, "data_hash", lambda named, extra=(): f"{sorted(named)} {extra}")


def test_items_of_made_files(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    suite = made_suite(tmp_path_factory)
    found = {name: outlines(target) for name, target in suite_targets(suite).items()}
    for name, (spec, write) in WRITERS.items():
        root = tmp_path / name
        root.mkdir()
        write(root)
        found[f"{spec} of {name}"] = outlines(Target(spec, root))
    compare("made", found)


def test_facts_and_options() -> None:
    facts = {name: asdict(meta(name)) for name in benchmark_names()}
    compare("facts", {name: digest(each) for name, each in facts.items()})
    options = {
        name: {option.name: kind_named(option.kind) for option in reader(name).options.values()}
        for name in benchmark_names()
    }
    compare("options", options)


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_official_files_are_those_that_are_known(shared_data: Path, name: str) -> None:
    root, about = shared_data / "annotations", meta(name)
    counts = official(name, root).content.counts()
    assert {part: n for part, n in counts.items() if part in about.expected} == about.expected
    for place, known in about.hashes.items():
        if name == "valse":
            with zipfile.ZipFile(root / "valse" / "valse_json.zip") as opened:
                assert files.bytes_hash(opened.read(Path(place).name)) == known
        else:
            assert files.file_hash(root / place) == known


def test_items_of_official_files(shared_data: Path) -> None:
    root = shared_data / "annotations"
    compare("official", {name: outlines(Target(name, root), moving=False) for name in OFFICIAL})


# --- Files that are cut off, of another kind, binary, absent, or without their images. ---


PICTURES = (".png", ".jpg", ".npy")
MADE = tuple(name for name in benchmark_names() if name in BUILDERS)
FOLDERS = sorted(
    {file.partition("/")[0] for name in MADE for file in meta(name).files}
    - {"flickr8k", "urban1k", "docci", "sharegpt4v"}  # sets that the world does not make
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_suite(tmp_path_factory)


@pytest.fixture(scope="module")
def bare(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite without any image."""
    folder = tmp_path_factory.mktemp("bare") / "suite"
    shutil.copytree(root, folder, ignore=lambda _, names: [n for n in names if n[-4:] in PICTURES])
    return folder


def annotations(root: Path, folder: str) -> list[Path]:
    """Return three files below a folder that a benchmark reads, or a few more; one has 56."""
    paths = sorted((root / folder).rglob("*"))
    files = [path for path in paths if path.is_file() and path.suffix not in PICTURES]
    return files[:: max(1, len(files) // 3)]


def readers(known: dict[str, Target], root: Path, path: Path) -> list[str]:
    """The names of targets that read a file, by what their benchmarks say of themselves."""
    folder, *inner = path.relative_to(root).parts
    if folder == "elevater":
        return [f"zero_shot:{inner[0]}"]
    found = []
    for key, target in known.items():
        name, _, part = target.spec.partition(":")
        about = meta(name)
        files = about.of_set(part, about.files) if about.family else about.files
        if {f"{folder}_captions", "annotations"} & target.options.keys():
            files = ()  # the target reads other ones
        given = [value for value in target.options.values() if isinstance(value, Path)]
        if any(path.is_relative_to(each) for each in given) or any(
            path in root.glob(each) for each in files
        ):
            found.append(key)
    return found


def cut_off(data: bytes, suffix: str) -> bytes:
    """Two thirds of a file, or a table up to the first cell of its last row."""
    if suffix != ".csv":
        return data[: len(data) * 2 // 3]
    rows = data.splitlines(keepends=True)
    return b"".join(rows[:-1]) + rows[-1].partition(b",")[0]


def of_another_kind(data: bytes, suffix: str) -> bytes:
    return b"nothing of the kind\n" if suffix in (".csv", ".txt") else b"3\n"


def binary(data: bytes, suffix: str) -> bytes:
    return b"\xff\xfe\x00" + data


@pytest.mark.parametrize("folder", [*FOLDERS, "elevater"])
def test_damaged_files_are_one_clear_line(root: Path, folder: str) -> None:
    known = suite_targets(root)
    files = annotations(root, folder)
    assert files
    for path, spoil in product(files, (cut_off, of_another_kind, binary)):
        if path.suffix == ".txt" and spoil is cut_off:
            continue  # fewer lines are a smaller set
        data = path.read_bytes()
        path.write_bytes(spoil(data, path.suffix))
        messages = []
        for spec in readers(known, root, path):
            try:
                known[spec].load()
            except CompoclipError as error:
                messages.append(str(error))
        path.write_bytes(data)
        assert messages, f"{path}: nothing refuses it"
        for text in messages:
            assert path.name in text or f"{path.parent}" in text
            assert "\n" not in text


@pytest.mark.parametrize("folder", sorted({*FOLDERS} - {"foils", "crepe"}))
def test_absent_files_are_named(root: Path, folder: str) -> None:
    known = suite_targets(root)
    for path in annotations(root, folder):
        wanted = readers(known, root, path)
        assert wanted
        aside = path.rename(path.with_name("aside"))
        for spec in wanted:
            with pytest.raises(CompoclipError) as raised:
                known[spec].load()
            assert "\n" not in str(raised.value)
            assert path.stem in str(raised.value) or f"{path.parent}" in str(raised.value)
        aside.rename(path)


@pytest.mark.parametrize("name", benchmark_names())
def test_absent_images_are_refused_and_named(bare: Path, name: str) -> None:
    for spec, target in suite_targets(bare).items():
        if spec.partition(":")[0] != name:
            continue
        if name == "sugarcrepe_pp_tot":
            require_present(target.load(), allow_partial=False)  # texts alone
            continue
        with pytest.raises(CompoclipError) as raised:
            require_present(target.load(), allow_partial=False)
        text = str(raised.value)
        assert str(bare) in text
        assert "\n" not in text
