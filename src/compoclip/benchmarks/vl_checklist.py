"""VL-CheckList: a true and a false phrase or sentence (Zhao et al., EMNLP 2022 demonstrations).

Read from 56 JSON lists below `<root>/vl_checklist/data` (option `annotations`: another folder), in
the folders of the official repository:

    Attribute/{vg,vaw}/{action,color,material,size,state}.json
    Object/Location/hake_location/hake_obj_P.json, swig_location/swig_R/swig_R_P.json and
        vg_location/vg_{obj,subj}_P.json, with P center, mid, margin, R agent, destination, item,
        tool; Object/Size the same with hake_size and so on and P large, medium, small
    Relation/{hake_action,swig_action,vg/action,vg/spatial}.json

    [["pic/outdoor_06674.jpg", {"POS": ["person push bicycle"], "NEG": ["person push sink"]}]]

The first string of each is used. Photos: `<root>/{hake,swig,vg}/<path>` (argument `images`: another
folder with these three; options `hake_images`, `swig_images`, `vg_images`). Part of HAKE can no
longer be had. Official code skips absent photos, so that papers score different items; here the
first 1,000 *listed* items of each file are taken (limit=none: all) and absent photos count against
coverage.

Metric: the true text scores higher; a tie is wrong. A sub-task (13 of them, e.g.
`object_size_small`) is the mean of its sources, a source the mean of its files: the aggregate of
that name. `object`, `attribute`, `relation` are the means of 6, 5 and 2 sub-tasks; headline
`vl_compo`: the mean of these three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Aggregate, Case, Form, ImageRef, Meta
from compoclip.benchmarks.reader import CaseReader, Loading, Subtask, facts
from compoclip.benchmarks.sources import RemoteFile, repository
from compoclip.errors import CompoclipError, UsageError

ROLES = ("agent", "destination", "item", "tool")
PLACES = MappingProxyType(
    {"location": ("center", "mid", "margin"), "size": ("large", "medium", "small")}
)
KINDS = ("action", "color", "material", "size", "state")


def _layout() -> dict[str, dict[str, str]]:
    """Sub-task -> file below the data folder -> source of its photos."""
    found: dict[str, dict[str, str]] = {}
    for what, values in PLACES.items():
        for value in values:
            folder = f"Object/{what.capitalize()}"
            files_of = {f"{folder}/hake_{what}/hake_obj_{value}.json": "hake"}
            for role in ROLES:
                files_of[f"{folder}/swig_{what}/swig_{role}/swig_{role}_{value}.json"] = "swig"
            for side in ("obj", "subj"):
                files_of[f"{folder}/vg_{what}/vg_{side}_{value}.json"] = "vg"
            found[f"object_{what}_{value}"] = files_of
    for kind in KINDS:
        found[f"attribute_{kind}"] = {f"Attribute/{s}/{kind}.json": s for s in ("vg", "vaw")}
    found["relation_action"] = {
        "Relation/hake_action.json": "hake",
        "Relation/swig_action.json": "swig",
        "Relation/vg/action.json": "vg",
    }
    found["relation_spatial"] = {"Relation/vg/spatial.json": "vg"}
    return found


LAYOUT: Mapping[str, Mapping[str, str]] = MappingProxyType(_layout())
"""Sub-task -> file below the data folder -> source: hake, swig, vg, or vaw (photos of vg)."""

_FOLDER = "vl_checklist/data"
_FILES = tuple(file for each in LAYOUT.values() for file in each)
_REPOSITORY = repository("om-ai-lab/VL-CheckList")
META = Meta(
    id="vl_checklist",
    title="VL-CheckList",
    citation="Zhao et al., An Explainable Toolbox for Evaluating Pre-trained Vision-Language "
    "Models, EMNLP 2022 System Demonstrations",
    source="repository om-ai-lab/VL-CheckList, folder data; photos: HAKE, SWiG, Visual Genome",
    licence="none stated",
    status="partly dead",
    access="annotations open; a part of the HAKE photos (PIC) can no longer be had",
    files=tuple(f"{_FOLDER}/{file}" for file in _FILES),
    images=("hake", "swig", "vg"),
    chance={"": 1 / 2},
    remote=tuple(RemoteFile(f"{_FOLDER}/{file}", f"{_REPOSITORY}/data/{file}") for file in _FILES),
    **facts(
        {
            name: Subtask("spatial" if name == "relation_spatial" else name.partition("_")[0])
            for name in LAYOUT
        }
    ),
)
LIMIT = 1000


def _rule(subtask: str) -> Aggregate:
    """The mean over sources of the mean over files."""
    every = LAYOUT[subtask]
    return Aggregate(
        tuple(
            Aggregate(
                (subtask,),
                macro_by="file",
                exclude=frozenset(_label(f) for f, other in every.items() if other != source),
            )
            for source in dict.fromkeys(every.values())
        )
    )


def _label(file: str) -> str:
    """The label "file" of a case: the path below the data folder without suffix."""
    return str(PurePosixPath(file).with_suffix(""))


def _group(name: str) -> Aggregate:
    return Aggregate(tuple(_rule(each) for each in LAYOUT if each.startswith(f"{name}_")))


_GROUPS = {name: _group(name) for name in ("object", "attribute", "relation")}


def _cases(
    data: Loading,
    *,
    annotations: Path | None = None,
    limit: int | None = LIMIT,
    hake_images: Path | None = None,
    swig_images: Path | None = None,
    vg_images: Path | None = None,
) -> Iterator[Case]:
    """limit: first items to take of each file, None for all."""
    if limit is not None and limit < 1:
        raise UsageError(f"vl_checklist: limit must be at least 1, or none for all, not {limit}")
    data.stated.append(f"limit {limit}")
    folder = annotations or data.root / _FOLDER
    photos = data.photos("")
    roots = {
        "hake": hake_images or photos / "hake",
        "swig": swig_images or photos / "swig",
        "vg": vg_images or photos / "vg",
    }
    empty = True
    for subtask in data.parts:
        for file, source in LAYOUT[subtask].items():
            labels = {"source": source, "file": _label(file)}
            place = roots["vg" if source == "vaw" else source]
            for index, where, value in data.values(file, folder / file, _REMEDY):
                if limit is not None and index >= limit:
                    data.left_out[f"items beyond the first {limit} of their file"] += 1
                    continue
                empty = False
                yield _case(value, f"{labels['file']}/{index}", subtask, place, labels, where)
    if empty:
        raise CompoclipError(f"{folder}: the files hold no items; fetch the official files again")


_REMEDY = "put the official folder there, or select the parts you have, e.g. vl_checklist:object_*"


def _case(
    value: Any, key: str, subtask: str, photos: Path, labels: Mapping[str, str], where: str
) -> Case:
    row = files.items(value, where)
    if len(row) != 2:
        raise CompoclipError(f"{where}: expected [photo, texts], found {len(row)}")
    image = files.image_path(photos, files.nonempty(row[0], f"{where}: photo"), where)
    said = files.record(row[1], f"{where}: texts")
    texts = (_first(said, "POS", where), _first(said, "NEG", where))
    return Case(key, Form.CHOOSE_TEXT, (ImageRef(image),), texts, subtask, labels=labels)


def _first(texts: dict[str, Any], key: str, where: str) -> str:
    """The first of the strings under POS or NEG."""
    listed = files.items(files.field(texts, key, where), f"{where}: {key!r}")
    if not listed:
        raise CompoclipError(f"{where}: {key!r} is empty; fetch the official file again")
    return files.nonempty(listed[0], f"{where}: {key!r}")


VL_CHECKLIST = CaseReader(
    META,
    _cases,
    rules={
        "vl_compo": Aggregate(tuple(_GROUPS.values())),
        **_GROUPS,
        **{name: _rule(name) for name in LAYOUT},
    },
    headline="vl_compo",
)
