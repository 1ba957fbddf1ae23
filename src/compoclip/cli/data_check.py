"""`compoclip data check [NAME ...] --data ROOT`: what is there, missing or short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from compoclip.benchmarks.check import Check, check
from compoclip.benchmarks.registry import benchmark_names, meta
from compoclip.cli.data_ls import in_bytes
from compoclip.cli.options import parse
from compoclip.console import emit_json
from compoclip.errors import CompoclipError
from compoclip.evaluation.targets import Target, parse_targets


@dataclass(frozen=True)
class CheckOptions:
    """Say what of each benchmark lies below a data root, and what is missing or short.

    Files are compared with the official bytes where their checksum is known; items and photos are
    counted. Exit code 1 when something asked for is not complete.

    Examples:
        compoclip data check sugarcrepe valse --data /data
        compoclip data check retrieval:coco --data /data --decode

    Args:
        names: Benchmarks, written as for evaluate --on; by default all that have a file there.
        data: Data root in the default layout.
        images: Folder with the photos, when it is not in the data root.
        decode: Also decode every photo.
        json: Print JSON.
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ()
    data: Path = Path("data")
    images: Path | None = None
    decode: bool = False
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Check every benchmark; 1 when one is not complete."""
    options = parse(CheckOptions, "data check", argv)
    checks = [
        check(each.spec, each.root, each.images, options=each.options, decoding=options.decode)
        for each in targets(options.names, options.data, options.images)
    ]
    if options.json:
        emit_json([{**asdict(each), "complete": each.complete} for each in checks])
    else:
        print("\n\n".join("\n".join(lines(each)) for each in checks))
    return 0 if all(each.complete for each in checks) else 1


def targets(names: Sequence[str], root: Path, images: Path | None) -> list[Target]:
    """What `names` name; without names every benchmark that has a file of its own below `root`.

    Raises CompoclipError when there is none.
    """
    if names:
        return parse_targets(names, root, images)
    found: list[str] = []
    for name in benchmark_names():
        about = meta(name)
        if about.family:
            found += [
                f"{name}:{part}"
                for part in about.parts
                if any(
                    about.place(root, file) or (root / file).is_dir()
                    for file in (
                        *about.of_set(part, about.files),
                        *about.of_set(part, about.images),
                    )
                )
            ]
        elif not about.requires and any(
            about.place(root, file)
            for file in (*about.files, *about.archives)
            if file.startswith(f"{name}/") or not any(f.startswith(f"{name}/") for f in about.files)
        ):
            found.append(name)
    if not found:
        raise CompoclipError(
            f"{root}: no file of any benchmark; name benchmarks and their places, or see "
            "compoclip data ls"
        )
    return [Target(spec, root, images) for spec in found]


def lines(found: Check) -> Iterator[str]:
    """One benchmark: files, items, photos, problems."""
    yield f"{found.benchmark}: {'complete' if found.complete else 'NOT COMPLETE'}"
    for file in found.files:
        size = f", {in_bytes(file.bytes)}" if file.bytes else ""
        yield f"  {file.path}: {_STATES[file.state]}{size}"
    for part, count in found.items.items():
        yield f"  items of {part}: {count.here:,} of {count.expected:,}"
    for reason, n in found.left_out.items():
        yield f"  left out, {reason}: {n:,}"
    for folder, count in found.images.items():
        yield f"  photos in {folder}: {count.here:,} of {count.expected:,}"
    if found.decoded:
        yield f"  photos that cannot be decoded: {found.damaged_count:,}"
    for title, names, number in (
        ("missing", found.missing, found.missing_count),
        ("damaged", found.damaged, found.damaged_count),
    ):
        for name in names:
            yield f"  {title}: {name}"
        if number > len(names):
            yield f"  {title}: {number - len(names):,} more"
    for problem in found.problems:
        yield f"  ! {problem}"


_STATES = {
    "official": "there, the official bytes",
    "present": "there",
    "differs": "there, but not the official bytes",
    "archive": "not unpacked, an archive is there",
    "missing": "MISSING",
}
