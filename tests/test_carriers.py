"""A sample on its way from a row of a file to a loss: the page lists the types that hold it.

A carrier is a class of the package of which a function returns an instance that differs when the
sample does. Two walks are compared, of samples that differ in words and colours alone: counts,
plans and indices are the same for both. Classes in the fields of carriers are their parts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor, nn

from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.loader import BatchLoader
from compoclip.data.plan import TextPlan
from compoclip.data.prepared import Preparation
from compoclip.data.sources.open import open_source
from compoclip.data.transform import ImageTransform
from compoclip.methods.registry import load_recipe
from compoclip.ranks import SINGLE
from compoclip.training.distributed import shared_batches
from compoclip.training.settings import RunSettings
from compoclip.training.step import step, weighted_loss
from train_helpers import new_model

ROOMS = ("data", "losses", "methods", "models", "training")
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
MOST = 10
RED = "a red cat on a mat", "a cat on a red mat", "red"
BLUE = "a blue dog on a rug", "a dog on a blue rug", "blue"
PARCELS = """
class Parcel:
    def __init__(self, texts):
        self.texts = texts

def packed(texts):
    return Parcel(texts)

class Packing(TextPlan):
    def draw(self, *arguments):
        return packed(super().draw(*arguments)).texts
"""


def inner(value: Any) -> Iterator[Any]:
    """Yield what a value holds: its fields or items, what a function has been given beforehand."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, tuple | list):
        yield from value
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, FunctionType):
        yield from (cell.cell_contents for cell in value.__closure__ or ())
    elif isinstance(value, MethodType):
        yield value.__self__
    elif is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))
        yield from vars(value).values() if hasattr(value, "__dict__") else ()
    elif type(value).__module__.startswith("compoclip."):
        yield from getattr(value, "__dict__", {}).values()


def content(value: Any) -> bytes:
    """Hash the texts, numbers and tensors that a value holds, without the weights of a model."""
    hashed, seen = blake2b(), dict[int, Any]()

    def add(part: Any) -> None:
        if id(part) in seen or isinstance(part, nn.Module | type):
            return
        if isinstance(part, Tensor):
            hashed.update(part.detach().numpy().tobytes())
        elif isinstance(part, np.ndarray | Image.Image):
            hashed.update(part.tobytes())
        elif isinstance(part, pa.Table):
            hashed.update(repr(part.to_pylist()).encode())
        elif isinstance(part, str | bytes | int | float):
            hashed.update(repr(part).encode())
        else:
            seen[id(part)] = part
            for within in inner(part):
                add(within)

    add(value)
    return hashed.digest()


@dataclass
class Met:
    """An instance that was met on a walk, and its content at that time."""

    instance: Any
    content: bytes


class Walk:
    """Records the instances of classes of the rooms that functions of the rooms return.

    returned: the instances. held: what stood in their fields.
    """

    def __init__(self) -> None:
        self.returned: list[Met] = []
        self.held: list[Met] = []

    def __enter__(self) -> Walk:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, value: Any) -> None:
        if event != "return" or not _in_rooms(frame.f_globals.get("__name__", "")):
            return
        sys.setprofile(None)
        self._note(value)
        # What comes after the loss, gradients and records, is no longer on the way.
        if frame.f_code is not weighted_loss.__code__:
            sys.setprofile(self._look)

    def _note(self, value: Any) -> None:
        if _is_ours(value):
            self.returned.append(Met(value, content(value)))
            self.held += [Met(part, content(part)) for part in _fields(value) if _is_ours(part)]
        elif isinstance(value, tuple | list):
            for part in value:
                self._note(part)


def _in_rooms(module: str) -> bool:
    package, _, rest = module.partition(".")
    return package == "compoclip" and rest.partition(".")[0] in ROOMS


def _is_ours(value: Any) -> bool:
    return _in_rooms(type(value).__module__) and not isinstance(value, nn.Module)


def _fields(instance: Any) -> Iterator[Any]:
    """Yield what stands in the fields of an instance, however deep."""
    for part in inner(instance):
        if not isinstance(part, Tensor | np.ndarray | FunctionType | MethodType | partial):
            yield part
            yield from _fields(part)


def differing(one: list[Met], other: list[Met]) -> list[Any]:
    """Return the instances of one walk whose types have another content in another walk."""
    contents = [{(type(met.instance), met.content) for met in walk} for walk in (one, other)]
    types = {kind for kind, _ in contents[0] ^ contents[1]}
    return [met.instance for met in one if type(met.instance) in types]


def names(instances: Iterable[Any]) -> list[str]:
    """Return the names of their types, each once."""
    return list(dict.fromkeys(type(instance).__name__ for instance in instances))


def carriers(one: Walk, other: Walk) -> list[str]:
    """Return the types that hold what differs between two walks, in the order of the first."""
    held = {id(met.instance) for met in one.held}
    return names(i for i in differing(one.returned, other.returned) if id(i) not in held)


def parts(one: Walk, other: Walk) -> list[str]:
    """Return the other types that stand in fields of carriers and differ between two walks."""
    whole = carriers(one, other)
    return [name for name in names(differing(one.held, other.held)) if name not in whole]


def listed() -> tuple[list[list[str]], list[str]]:
    """Return the stations that the page lists, each with its classes or words, and the parts."""
    page = PAGE.read_text(encoding="utf-8")
    match = re.search(r"a value passes through .*?\n\n((?:    .*\n)+)\n((?:.+\n)+)", page)
    assert match is not None
    stations = re.sub(r"\(.*?\)", "", match[1]).split("->")
    split = [re.split(" with | and ", " ".join(station.split())) for station in stations]
    return split, re.findall("`(\\w+)`", match[2])


def walk_of(
    folder: Path, caption: str, negative: str, colour: str, draws: type[TextPlan] = TextPlan
) -> Walk:
    """Take a step on two samples, of which the first is given, and record what holds it."""
    for name, painted in (("0.png", colour), ("1.png", "white")):
        Image.new("RGB", (32, 32), painted).save(folder / name)
    rows = [("image", "caption", "neg_caption"), ("0.png", caption, negative)]
    rows.append(("1.png", "a white square", "a square wall"))
    table = folder / "data.csv"
    table.write_text("\n".join(map(",".join, rows)) + "\n")
    model, method = new_model(folder), load_recipe("fsc-clip")()
    method = replace(method, plan=CaptionPlan(("given",)))
    with Walk() as walk:
        source = open_source(str(table))
        transform = ImageTransform(model.preprocess)
        batches = BatchLoader(source, draws(method.plan), transform, batch_size=2)
        prepare = Preparation(model.tokenizer, model.encoder.text_planner())
        batches.prepare_with(prepare, torch.device("cpu"))
        batch, whole = next(shared_batches(batches, SINGLE, lambda: 0, 0, 1))
        settings = RunSettings(out=folder)
        step(model.encoder, model.tokenizer, method, batch, settings, whole)
    return walk


def test_the_page_lists_what_a_sample_passes_through(tmp_path: Path) -> None:
    stations, listed_parts = listed()
    assert len(stations) <= MOST
    assert (stations[0], stations[-1]) == (["record of a file"], ["loss"])
    red, blue = walk_of(tmp_path, *RED), walk_of(tmp_path, *BLUE)
    assert carriers(red, blue) == [name for station in stations[1:-1] for name in station]
    assert sorted(parts(red, blue)) == sorted(listed_parts)


def test_a_new_carrier_is_noticed(tmp_path: Path) -> None:
    module: dict[str, Any] = {"__name__": "compoclip.data.parcels", "TextPlan": TextPlan}
    exec(PARCELS, module)  # noqa: S102 the code above
    red, blue = (walk_of(tmp_path, *sample, module["Packing"]) for sample in (RED, BLUE))
    assert "Parcel" in carriers(red, blue)
