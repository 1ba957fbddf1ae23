"""What the lab compares, read from a JSON file: common settings, arms, effects to look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin

from compoclip.config import options_of
from compoclip.errors import CompoclipError, UsageError, require
from compoclip.files import read_json
from compoclip.methods.registry import method_names
from compoclip.typed import convert, is_a, kind_named
from lab.ground import Ground, World
from lab.photos import Photos

Expected = Literal["higher", "lower", "kept"]
BASE = "base"
TERMS = "terms"
"""The setting of an arm that adds terms to its method, as `train --terms` does."""
T = TypeVar("T")


@dataclass(frozen=True)
class Arm:
    """One thing to train: a method with keyword settings of its recipe.

    table: which training table; its control is that of the settings on the same one. wise_ft: share
    of the tuned weights in a mix with the base's, 1 is the tuned model itself. seeds: those of the
    settings when empty. about: what the arm shows. A setting that names a file of the lab's data
    (`data.FILES`) is its path there; `TERMS` are no setting of a recipe.
    """

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    table: str = "scenes"
    wise_ft: float = 1.0
    seeds: tuple[int, ...] = ()
    about: str = ""

    @property
    def plain(self) -> Arm:
        """The arm by what decides a run of one seed."""
        return replace(self, name="", about="", seeds=())


@dataclass(frozen=True)
class Effect:
    """A published finding: what `arm` does to `columns` compared with `against` (an arm or base).

    expect: "higher" or "lower"; "kept" is no loss of more than `margin`. margin: the smallest
    difference that would matter: arms that differ by less are equivalent.
    """

    claim: str
    arm: str
    against: str
    columns: tuple[str, ...]
    expect: Expected
    margin: float = 0.03


@dataclass(frozen=True)
class LabSettings:
    """The settings that all arms share.

    photos: for a lab of photos the fields of `lab.photos.Photos`, for one of the world nothing.
    compare_with: the table of another lab (reports/lab.tsv), to say whether both agree; "" for
    none.
    benchmarks: names of those of the suite that are measured. control: what arms are compared with,
    on the ground's first table; arms on another table are compared with the arm of its method and
    settings there (`control_of`). ours: an arm that is compared with every other. left_out: recipes
    without an arm of their own, since they equal that of another when the optimiser is the same or
    differ by one weight; with it, every further recipe that no arm names gets an arm. world: fields
    of the world of the training scenes that differ from `lab.ground.lab_world`. world_seed: of the
    scenes in training and in tests. tables: further training tables: name -> weights of caption
    types. scenes: training scenes. split: "val" measures on scenes or photos that the tables of the
    lab are not of, for whatever is to be chosen. items: of each sub-task that is measured;
    choice_items: of each sub-task of the validation suite. steps, batch_size: of every run; a batch
    is so many images, whatever they are.
    lrs, lora_lrs: peak learning rates to choose from, of all weights and of adapters. rates: arm ->
    the rate that an earlier lab chose for it. mask_duplicates: see `RunSettings`, for all arms
    alike; None for what the pages' runs of each recipe had (`lab.job.MASKED`). quick: what differs
    with --quick; its arms are names.
    """

    arms: tuple[Arm, ...]
    benchmarks: tuple[str, ...]
    control: str
    ours: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    effects: tuple[Effect, ...] = ()
    left_out: tuple[str, ...] | None = None
    model: str = "bundled"
    world: Mapping[str, Any] = field(default_factory=dict)
    world_seed: int = 0
    tables: Mapping[str, Any] = field(default_factory=dict)
    scenes: int = 1920
    items: int = 150
    split: Literal["test", "val"] = "test"
    choice_items: int = 50
    steps: int = 120
    batch_size: int = 32
    lrs: tuple[float, ...] = (7e-4,)
    lora_lrs: tuple[float, ...] = (7e-3,)
    rates: Mapping[str, Any] = field(default_factory=dict)
    warmup: int = 20
    clip_grad: float = 1.0
    quick: Mapping[str, Any] = field(default_factory=dict)
    photos: Mapping[str, Any] = field(default_factory=dict)
    compare_with: str = ""
    mask_duplicates: bool | None = None

    @property
    def ground(self) -> Ground:
        """Where data, suites, columns and bounds come from."""
        return Photos(**self.photos) if self.photos else World()

    def at(self, photos: str | None, base: str | None, draw: int = 0) -> LabSettings:
        """Return these settings for the photos of a folder and for another base, where named.

        draw: of the scenes, or of the split of the photos.
        """
        model = base or self.model
        if photos:
            return replace(self, photos={**self.photos, "data": photos, "draw": draw}, model=model)
        return replace(self, world_seed=draw, model=model)

    def arm(self, name: str) -> Arm:
        """The arm of that name. Raises UsageError when there is none."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise UsageError(f"no arm '{name}'; there are: {', '.join(a.name for a in self.arms)}")

    def control_of(self, arm: Arm) -> str:
        """The control on the table of the arm; "" when there is none."""
        plain = replace(self.arm(self.control).plain, table=arm.table)
        return next((a.name for a in self.arms if a.plain == plain), "")


def read_settings(path: Path, quick: bool = False) -> LabSettings:
    """The settings in a JSON file; quick: with the changes that its section "quick" makes.

    A file may be "like" others beside it: what it does not say is as in the last of them that says
    it, its arms come behind theirs. Raises CompoclipError, naming the file, when it is missing or
    malformed, has unknown fields, or names arms, methods' tables or columns that do not exist.
    """
    data = _merged(path)
    values: dict[str, Any] = {"arms": (), **data}
    photos = values.get("photos", {})
    ground: Ground = record_of(Photos, photos, f"{path}: photos") if photos else World()
    for name, kind in (("arms", Arm), ("effects", Effect)):
        rows = values.get(name, ())
        require(isinstance(rows, list | tuple), path, f"'{name}' must be a list")
        plain = {"table": ground.tables[0]} if kind is Arm else {}
        values[name] = tuple(
            record_of(
                kind, {**plain, **row} if isinstance(row, dict) else row, f"{path}: {name}[{i}]"
            )
            for i, row in enumerate(rows)
        )
    settings = record_of(LabSettings, values, path)
    names = [arm.name for arm in settings.arms]
    if quick:
        changes = dict(settings.quick)
        names = changes.pop("arms", names)
        require(isinstance(names, list), path, "quick: 'arms' must be a list of names")
        settings = record_of(LabSettings, {**values, **changes, "left_out": None}, path)
    _check(settings, names, path)
    if settings.left_out is not None:
        named = {arm.method for arm in settings.arms} | set(settings.left_out)
        table = settings.ground.tables[0]
        others = tuple(Arm(name, name, table=table) for name in method_names() if name not in named)
        names += [arm.name for arm in others]
        settings = replace(settings, arms=settings.arms + others)
    if settings.ours and not quick:
        _one_of(settings.ours, names, path, "ours")
    known = {*names, BASE}
    return replace(
        settings,
        ours=settings.ours if settings.ours in names else "",
        arms=tuple(settings.arm(name) for name in names),
        effects=tuple(e for e in settings.effects if {e.arm, e.against} <= known),
    )


def _merged(path: Path) -> dict[str, Any]:
    """Return the content of a settings file over that of the files named by its key "like"."""
    last = read_json(path, damaged="fix the file")
    names = last.pop("like", []) if isinstance(last, dict) else []
    known = isinstance(names, list) and all(
        isinstance(name, str) and name == Path(name).name and name for name in names
    )
    require(known, path, "'like' must be a list of names of files beside it")
    parts = {each: read_json(each, damaged="fix the file") for each in map(path.with_name, names)}
    parts[path] = last
    for where, part in parts.items():
        good = isinstance(part, dict) and (not names or isinstance(part.get("arms", []), list))
        require(good, where, "no settings of a lab; fix the file")
    values = {name: value for part in parts.values() for name, value in part.items()}
    if names:
        values["arms"] = [arm for part in parts.values() for arm in part.get("arms", [])]
    return values


def record_of(kind: type[T], row: Any, where: object) -> T:
    """A frozen dataclass from a JSON object; lists become tuples."""
    require(isinstance(row, dict), where, "not an object; fix the file")
    known, given = options_of(kind), {}
    for name, value in row.items():
        require(name in known, where, f"unknown field '{name}'; known: {', '.join(known)}")
        wanted = known[name].kind
        if get_origin(wanted) is Mapping:
            require(isinstance(value, dict), where, f"'{name}' must be an object")
        else:
            value = convert(value, wanted)
            require(is_a(value, wanted), where, f"'{name}' must be {kind_named(wanted)}")
        given[name] = value
    for name, each in known.items():
        require(name in row or each.default is not MISSING, where, f"'{name}' is missing")
    return kind(**given)


def _check(settings: LabSettings, run: Sequence[str], where: Path) -> None:
    """run: names of the arms that are run, each of which needs a control."""
    names = [arm.name for arm in settings.arms]
    require(names, where, "no arms")
    twice = next((name for name in names if names.count(name) > 1), None)
    require(twice is None, where, f"two arms are called '{twice}'")
    for arm in settings.arms:
        of_arm = f"arm '{arm.name}':"
        plain = arm.name.replace("-", "").isalnum() and arm.name != BASE
        require(plain, where, f"{of_arm} use letters, digits and -, not 'base'")
        tables = [*settings.ground.tables, *settings.tables]
        _one_of(arm.table, tables, where, f"{of_arm} table")
        require(0 <= arm.wise_ft <= 1, where, f"{of_arm} wise_ft must be 0 to 1")
    _one_of(settings.control, names, where, "control")
    for arm in settings.arms:
        there = arm.name not in run or settings.control_of(arm)
        if not there:
            raise CompoclipError(
                f"{where}: arm '{arm.name}': no arm trains {settings.control} on '{arm.table}'; "
                "add it"
            )
    for name in ("lrs", "lora_lrs"):
        grid = getattr(settings, name)
        require(grid and min(grid) > 0, where, f"'{name}' must be numbers above 0")
    for name, rate in settings.rates.items():
        _one_of(name, [*names, *method_names()], where, "rates")
        require(is_a(rate, float) and rate > 0, where, f"rates: '{name}' must be above 0")
    for seeds in (settings.seeds, *(arm.seeds for arm in settings.arms if arm.seeds)):
        good = 0 < len(set(seeds)) == len(seeds) and min(seeds) >= 0 and max(seeds) < 2**63
        require(good, where, "seeds must be different whole numbers from 0")
    for name in ("scenes", "items", "choice_items", "steps", "batch_size"):
        require(getattr(settings, name) > 0, where, f"'{name}' must be more than 0")
    columns = [column.name for column in settings.ground.columns]
    for effect in settings.effects:
        title = f"effect '{effect.claim}':"
        _one_of(effect.arm, names, where, f"{title} arm")
        _one_of(effect.against, [*names, BASE], where, f"{title} against")
        for column in effect.columns:
            _one_of(column, columns, where, f"{title} columns")


def _one_of(value: object, known: Sequence[str], where: Path, what: str) -> None:
    require(value in known, where, f"{what}: no '{value}'; there are: {', '.join(known)}")
