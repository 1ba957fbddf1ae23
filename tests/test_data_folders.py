"""The walk of a folder: what is read, what is passed over, and that the numbers add up."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from compoclip.data import decode, folders
from compoclip.data.folders import image_files
from compoclip.data.sources.open import Request
from compoclip.errors import CompoclipError

READ = ["1.jpg", "2.JFIF", "3.jp2", "deep/4.pbm", "deep/er/5.jpe"]
PASSED_OVER = {
    "@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg": folders.SYSTEM,
    "__MACOSX/._1.jpg": folders.SYSTEM,
    "deep/__MACOSX/cat/._1.jpg": folders.SYSTEM,
    "#recycle/old.png": folders.SYSTEM,
    "$Recycle.Bin/S-1-5/old.png": folders.SYSTEM,
    "System Volume Information/x.jpg": folders.SYSTEM,
    "lost+found/x.jpg": folders.SYSTEM,
    "Thumbs.db": folders.SYSTEM,
    "deep/desktop.ini": folders.SYSTEM,
    "._1.jpg": folders.HIDDEN,
    ".Trash-1000/files/x.jpg": folders.HIDDEN,
    ".thumbnails/x.jpg": folders.HIDDEN,
    ".jpg": folders.HIDDEN,
    "notes.txt": folders.NO_IMAGE_FILE,
    "jpg": folders.NO_IMAGE_FILE,
    "6.jxl": "image of a kind that is not read (.jxl)",
    "deep/7.PSD": "image of a kind that is not read (.psd)",
    "drafts/8.jpg": folders.EXCLUDED,
    "deep/er/9_copy.jpg": folders.EXCLUDED,
    "deep/old/10.jpg": folders.EXCLUDED,
    "\udcff.jpg": folders.NOT_UTF8,
}
EXCLUDE = ("drafts/", "*_copy.*", "deep/ol?")


def touch(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).touch()


def number_of_files(root: Path) -> int:
    """Files and links to folders, counted by the standard library."""
    return sum(
        len(files) + sum(Path(parent, name).is_symlink() for name in below)
        for parent, below, files in os.walk(root)
    )


def test_every_file_is_read_or_counted_by_its_reason(tmp_path: Path) -> None:
    for name in (*READ, *PASSED_OVER):
        touch(tmp_path, name)
    for name, target in {"linked.jpg": "1.jpg", "around": "deep", "lost.jpg": "gone.jpg"}.items():
        (tmp_path / name).symlink_to(target)
    os.mkfifo(tmp_path / "pipe.jpg")
    left_out = Counter[str]()
    assert list(image_files(tmp_path, left_out, EXCLUDE)) == [
        *("1.jpg", "2.JFIF", "3.jp2", "linked.jpg", "deep/4.pbm", "deep/er/5.jpe")
    ]
    others = [folders.LINKED_FOLDER, folders.BROKEN_LINK, folders.NO_FILE]
    assert left_out == Counter([*PASSED_OVER.values(), *others])
    assert 6 + left_out.total() == number_of_files(tmp_path)


def test_a_pattern_names_files_at_any_depth_or_from_the_folder_on(tmp_path: Path) -> None:
    for name in ("a/x.jpg", "b/a/x.jpg", "b/y.jpg"):
        touch(tmp_path, name)
    cases = {
        ("a",): ["b/y.jpg"],
        ("/a",): ["b/y.jpg"],
        ("b/a",): ["a/x.jpg", "b/y.jpg"],
        ("x.*",): ["b/y.jpg"],
        ("b/*.jpg",): ["a/x.jpg"],
        ("B", "X.JPG"): ["a/x.jpg", "b/y.jpg", "b/a/x.jpg"],
    }
    for exclude, expected in cases.items():
        assert list(image_files(tmp_path, Counter(), exclude)) == expected, exclude


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompoclipError, match=r"gone: .*check the folder"):
        list(image_files(tmp_path / "gone", Counter()))


NAMES = st.sampled_from(
    ["a.jpg", "b.jxl", "c.txt", ".d.jpg", "@eaDir", "__MACOSX", "e", "f.jpg", ".g", "Thumbs.db"]
)


@given(st.sets(st.lists(NAMES, min_size=1, max_size=4).map(tuple), max_size=12), st.sets(NAMES))
def test_read_and_left_out_are_all_files(paths: set[tuple[str, ...]], exclude: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path in paths:
            place = root.joinpath(*path)
            if not any(parent.is_file() for parent in place.parents) and not place.exists():
                touch(root, "/".join(path))
        left_out = Counter[str]()
        names = list(image_files(root, left_out, tuple(exclude)))
        assert len(names) + left_out.total() == number_of_files(root)
        assert all(map(decode.is_read, names))


def test_endings_are_those_that_pillow_knows_for_the_formats() -> None:
    Image.init()
    known = {e[1:] for e, kind in Image.registered_extensions().items() if kind in decode.FORMATS}
    assert known - {"pfm"} <= decode.EXTENSIONS  # whose grey has no black and white
    assert decode.EXTENSIONS.isdisjoint(decode.UNREAD)
    cases = {"a.JPG": True, "a.b.tiff": True, "jpg": False, ".jpg": False, "x.jpg/a": False}
    assert {name: decode.is_read(name) for name in cases} == cases


def test_links_to_class_folders_are_classes_once_and_without_circles(tmp_path: Path) -> None:
    """A subset of ImageNet is often a folder of links."""
    for name in ("full/n1/a.jpg", "full/n2/b.jpg", "full/n2/inner/c.jpg", "other/d.jpg"):
        touch(tmp_path, name)
    for top in ("flat", "split/train"):
        touch(tmp_path, f"{top}/n3/e.jpg")
        links = {"n1": "full/n1", "n2": "full/n2", "again": "full/n1", "up": ".", "here": top}
        for name, target in links.items():
            (tmp_path / top / name).symlink_to(tmp_path / target)
        (tmp_path / top / "n3" / "deep").symlink_to(tmp_path / "other")
        (tmp_path / top / "loop").symlink_to(tmp_path / top / "loop")
    touch(tmp_path, "split/val/n3/f.jpg")
    for folder, options in {"flat": {}, "split": {"split": "train"}}.items():
        source = Request(str(tmp_path / folder), needs="labels", **options).open()
        assert source.classes == ("again", "n2", "n3")
        names = [Path(source[k].id).name for k in range(len(source))]
        assert sorted(names) == ["a.jpg", "b.jpg", "c.jpg", "e.jpg"]
        assert source.left_out[folders.LINKED_FOLDER] == 4
        assert source.left_out[folders.BROKEN_LINK] == 1
