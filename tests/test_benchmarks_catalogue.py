"""Every benchmark of the catalogue, in the official layout that the world writes: made, read, and
refused in one line when a file is cut off, of another kind, binary, absent, or without its images.

What a guess, a constant and the oracle get on the same benchmarks: `test_evaluation_chance`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmark_files import made_suite, suite_targets
from compoclip.benchmarks.names import benchmark_names
from compoclip.benchmarks.registry import meta, require_present
from compoclip.benchmarks.targets import Target
from compoclip.errors import CompoclipError
from official import BUILDERS

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


@pytest.mark.parametrize("spoil", [cut_off, of_another_kind, binary])
@pytest.mark.parametrize("folder", [*FOLDERS, "elevater"])
def test_damaged_files_are_one_clear_line(
    root: Path, folder: str, spoil: Callable[[bytes, str], bytes]
) -> None:
    known = suite_targets(root)
    files = annotations(root, folder)
    assert files
    for path in files:
        if path.suffix == ".txt" and spoil is cut_off:
            continue  # fewer lines are a smaller set
        data = path.read_bytes()
        path.write_bytes(spoil(data, path.suffix))
        told = []
        for spec in readers(known, root, path):
            try:
                known[spec].load()
            except CompoclipError as error:
                told.append(str(error))
        path.write_bytes(data)
        assert told, f"{path}: nothing refuses it"
        for text in told:
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
