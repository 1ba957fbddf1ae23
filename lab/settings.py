"""What the lab compares, read from a JSON file: common settings, arms, effects to look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from compoclip.errors import CompoclipError, UsageError
from compoclip.files import read_json
from compoclip.methods.registry import method_names
from lab.ground import Ground, World
from lab.photos import Photos

Expected = Literal["higher", "lower", "kept"]
BASE = "base"
T = TypeVar("T")


@dataclass(frozen=True)
class Arm:
    """One thing to train: a method with keyword settings of its recipe.

    table: which training table; its control is that of the settings on the same one. wise_ft: share
    of the tuned weights in a mix with the base's, 1 is the tuned model itself. about: shown in the
    legend. A setting that names a file of the lab's data (`data.FILES`) is its path there.
    """

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    table: str = "scenes"
    wise_ft: float = 1.0
    about: str = ""


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
    compare_with: the page of another lab (reports/lab.md), to say whether both agree; "" for none.
    benchmarks: names of those of the suite that are measured. control: what arms are compared with,
    on the ground's first table; arms on another table are compared with the arm of its method and
    settings there (`control_of`). ours: an arm that is compared with every other. left_out: recipes
    without an arm of their own, since they equal that of another when the optimiser is the same or
    differ by one weight; with it, every further recipe that no arm names gets an arm. world: fields
    of the world of the training scenes that differ from `lab.ground.lab_world`. tables: further
    training tables: name -> weights of caption types. scenes: training scenes. split: "val"
    measures on scenes or photos that the tables of the lab are not of, for whatever is to be
    chosen. items: of each sub-task that is measured; choice_items: of each sub-task of the
    validation suite. steps, batch_size: of every run; a batch is so many images, whatever they are.
    lrs, lora_lrs: peak learning rates to choose from, of all weights and of adapters. quick: what
    differs with --quick; its arms are names.
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
    tables: Mapping[str, Any] = field(default_factory=dict)
    scenes: int = 1920
    items: int = 150
    split: Literal["test", "val"] = "test"
    choice_items: int = 50
    steps: int = 120
    batch_size: int = 32
    lrs: tuple[float, ...] = (7e-4,)
    lora_lrs: tuple[float, ...] = (7e-3,)
    warmup: int = 20
    clip_grad: float = 1.0
    quick: Mapping[str, Any] = field(default_factory=dict)
    photos: Mapping[str, Any] = field(default_factory=dict)
    compare_with: str = ""

    @property
    def ground(self) -> Ground:
        """Where data, suites, columns and bounds come from."""
        return Photos(**self.photos) if self.photos else World()

    def at(self, photos: str | None, base: str | None) -> LabSettings:
        """These settings for the photos of a folder, and for another base, if they are named."""
        where = {**self.photos, "data": photos} if photos else self.photos
        return replace(self, photos=where, model=base or self.model)

    def arm(self, name: str) -> Arm:
        """The arm of that name. Raises UsageError when there is none."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise UsageError(f"no arm '{name}'; there are: {', '.join(a.name for a in self.arms)}")

    def control_of(self, arm: Arm) -> str:
        """The control on the table of the arm; "" when there is none."""
        plain = replace(self.arm(self.control), name="", about="", table=arm.table)
        return next((a.name for a in self.arms if replace(a, name="", about="") == plain), "")


def read_settings(path: Path, quick: bool = False) -> LabSettings:
    """The settings in a JSON file; quick: with the changes that its section "quick" makes.

    A file may be "like" others beside it: what it does not say is as in the last of them that says
    it, its arms come behind theirs. Raises CompoclipError, naming the file, when it is missing or
    malformed, has unknown fields, or names arms, methods' tables or columns that do not exist.
    """
    data, where = _merged(path), str(path)
    if not isinstance(data, dict):
        raise CompoclipError(f"{where}: not an object; fix the file")
    values = dict(data)
    for name, kind in (("arms", Arm), ("effects", Effect)):
        rows = values.get(name, [])
        if not isinstance(rows, list):
            raise CompoclipError(f"{where}: '{name}' must be a list")
        values[name] = tuple(
            _record(kind, row, f"{where}: {name}[{i}]") for i, row in enumerate(rows)
        )
    photos = values.get("photos", {})
    _require(isinstance(photos, dict), f"{where}: 'photos' must be an object")
    ground: Ground = _record(Photos, photos, f"{where}: photos") if photos else World()
    values["arms"] = tuple(
        arm if "table" in row else replace(arm, table=ground.tables[0])
        for arm, row in zip(values["arms"], data.get("arms", []))
    )
    settings = _record(LabSettings, values, where)
    names = [arm.name for arm in settings.arms]
    if quick:
        changes = dict(settings.quick)
        names = changes.pop("arms", names)
        _require(isinstance(names, list), f"{where}: quick: 'arms' must be a list of names")
        settings = _record(LabSettings, {**values, **changes, "left_out": None}, where)
    _check(settings, names, where)
    if settings.left_out is not None:
        named = {arm.method for arm in settings.arms} | set(settings.left_out)
        table = settings.ground.tables[0]
        others = tuple(Arm(name, name, table=table) for name in method_names() if name not in named)
        names += [arm.name for arm in others]
        settings = replace(settings, arms=settings.arms + others)
    if settings.ours and not quick:
        _one_of(settings.ours, names, f"{where}: ours")
    known = {*names, BASE}
    return replace(
        settings,
        ours=settings.ours if settings.ours in names else "",
        arms=tuple(settings.arm(name) for name in names),
        effects=tuple(e for e in settings.effects if {e.arm, e.against} <= known),
    )


def _merged(path: Path) -> Any:
    """Return the content of a settings file over that of the files named by its key "like"."""
    own = read_json(path, damaged="fix the file")
    if not isinstance(own, dict) or "like" not in own:
        return own
    names = own.pop("like")
    known = isinstance(names, list) and all(
        isinstance(name, str) and name == Path(name).name and name for name in names
    )
    _require(known, f"{path}: 'like' must be a list of names of files beside it")
    parts = {each: read_json(each, damaged="fix the file") for each in map(path.with_name, names)}
    parts[path] = own
    for where, part in parts.items():
        good = isinstance(part, dict) and isinstance(part.get("arms", []), list)
        _require(good, f"{where}: no settings of a lab; fix the file")
    values = {name: value for part in parts.values() for name, value in part.items()}
    return {**values, "arms": [arm for part in parts.values() for arm in part.get("arms", [])]}


def _record(kind: type[T], row: Any, where: str) -> T:
    """A frozen dataclass from a JSON object; lists become tuples."""
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(row, dict):
        raise CompoclipError(f"{where}: not an object; fix the file")
    for name in row:
        if name not in known:
            raise CompoclipError(f"{where}: unknown field '{name}'; known: {', '.join(known)}")
    for name, each in known.items():
        required = each.default is MISSING and each.default_factory is MISSING
        if required and name not in row:
            raise CompoclipError(f"{where}: '{name}' is missing")
    frozen = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
    for name, value in frozen.items():
        kinds = _KINDS.get(str(known[name].type), ())
        if kinds and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise CompoclipError(f"{where}: '{name}' must be {_IN_WORDS[kinds[0]]}")
    return kind(**frozen)


_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "Mapping[str, Any]": (dict,),
    "tuple[str, ...]": (tuple,),
    "tuple[int, ...]": (tuple,),
    "tuple[float, ...]": (tuple,),
}
_IN_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    tuple: "a list",
}


def _check(settings: LabSettings, run: Sequence[str], where: str) -> None:
    """run: names of the arms that are run, each of which needs a control."""
    names = [arm.name for arm in settings.arms]
    _require(bool(names), f"{where}: no arms")
    twice = next((name for name in names if names.count(name) > 1), None)
    _require(twice is None, f"{where}: two arms are called '{twice}'")
    for arm in settings.arms:
        plain = arm.name.replace("-", "").isalnum() and arm.name != BASE
        _require(plain, f"{where}: arm '{arm.name}': use letters, digits and -, not 'base'")
        _one_of(
            arm.table,
            [*settings.ground.tables, *settings.tables],
            f"{where}: arm '{arm.name}': table",
        )
        _require(0 <= arm.wise_ft <= 1, f"{where}: arm '{arm.name}': wise_ft must be 0 to 1")
    _one_of(settings.control, names, f"{where}: control")
    for arm in settings.arms:
        _require(
            arm.name not in run or bool(settings.control_of(arm)),
            f"{where}: arm '{arm.name}': no arm trains {settings.control} on '{arm.table}'; add it",
        )
    for name in ("lrs", "lora_lrs"):
        grid = getattr(settings, name)
        _require(
            bool(grid) and all(isinstance(v, float | int) and v > 0 for v in grid),
            f"{where}: '{name}' must be numbers above 0",
        )
    seeds = settings.seeds
    whole = all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds)
    _require(
        whole and 0 < len(set(seeds)) == len(seeds),
        f"{where}: seeds must be different whole numbers from 0",
    )
    _one_of(settings.split, ("test", "val"), f"{where}: split")
    for name in ("scenes", "items", "choice_items", "steps", "batch_size"):
        _require(getattr(settings, name) > 0, f"{where}: '{name}' must be more than 0")
    columns = [column.name for column in settings.ground.columns]
    for effect in settings.effects:
        title = f"{where}: effect '{effect.claim}'"
        _one_of(effect.expect, get_args(Expected), f"{title}: expect")
        _one_of(effect.arm, names, f"{title}: arm")
        _one_of(effect.against, [*names, BASE], f"{title}: against")
        for column in effect.columns:
            _one_of(column, columns, f"{title}: columns")


def _one_of(value: object, known: Sequence[str], what: str) -> None:
    _require(value in known, f"{what}: no '{value}'; there are: {', '.join(known)}")


def _require(good: bool, message: str) -> None:
    if not good:
        raise CompoclipError(message)
