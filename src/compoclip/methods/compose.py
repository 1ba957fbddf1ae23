"""A method made of the parts of several: more texts, more loss terms, other settings."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from compoclip import own
from compoclip.console import note
from compoclip.data.caption_plan import (
    GIVEN_POSITIVE,
    OF_DATA,
    OTHER_CAPTION,
    WRITTEN,
    WRITTEN_POSITIVE,
    CaptionPlan,
    OneOf,
)
from compoclip.data.images import SINGLE
from compoclip.data.texts import BY_VALUE
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses.contract import Role
from compoclip.losses.rows import OnlyKinds
from compoclip.methods.base import LossTerm, Method, Teacher
from compoclip.methods.registry import load_recipe, method_names
from compoclip.rewrites.base import get_rewrite, kind_named, rewrite_names

T = TypeVar("T")
_SUFFIX = "-clip"  # may be left out of the name of a method
_FROM_FILES = (*OF_DATA, *WRITTEN)
_PARTS = ("terms", "texts", "images", "trains", "lora", "teacher", "optim")


def compose(
    method: Method,
    texts: Sequence[str] = (),
    terms: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Method:
    """`method` with parts of others; what was done is recorded in `composed`, for provenance.

    texts: "+NAME" adds the texts of a method ("+mosaic", short for mosaic-clip), a rewrite, a
    rewrite in a file of one's own ("+./my_rewrite.py"), "given", "other-caption" or, from the file
    texts.written, "written-positive" and "written-negative"; names without + replace the method's
    own texts.
    terms: "+METHOD" adds all loss terms of a method, "+METHOD.TERM" one of them; they see captions
    and that method's kinds of text. "+./my_loss.py" adds the `LossTerm` of a file, "+NAME" that of
    another package; these see all texts, as the method's own terms do, but for those that name the
    kinds they read. settings: PATH=VALUE, with PATH such as terms.local_hn.weight,
    texts.hn_fraction, images.count or trains.image_tower.

    Notes on standard error texts that no term reads. Raises UsageError, with the closest names, for
    what does not exist or does not fit.
    """
    for name in method.plan.all_rewrites:
        own.refresh(name)
    composed = method
    for name in texts:
        composed = _with_texts(composed, name, first=name == texts[0])
    for name in terms:
        composed = _with_terms(composed, name)
    for setting in settings:
        composed = _with_setting(composed, setting)
    changes = [
        *(f"texts {name}" for name in texts),
        *(f"terms {name}" for name in terms),
        *(f"set {setting}" for setting in settings),
    ]
    if texts or terms:
        _note_unread(composed)
    return replace(composed, composed=(*method.composed, *changes))


def _with_texts(method: Method, name: str, first: bool) -> Method:
    added = _texts_named(name.removeprefix("+"))
    own = method.plan
    if not name.startswith("+"):
        # The first name without + takes the place of the method's own texts.
        others = tuple(each for each in own.texts if not each.kinds)
        own = replace(own, texts=others, rewrites=() if first else own.rewrites)
    more = tuple(each for each in added.texts if each.kinds and each not in own.texts)
    for each in more:
        if each.name in {other.name for other in own.texts if other.kinds}:
            raise UsageError(f"--texts {name}: {method.name} draws {each.label} already")
    plan = replace(
        own,
        rewrites=(*own.rewrites, *(r for r in added.rewrites if r not in own.rewrites)),
        texts=(*own.texts, *more),
        written=own.written or added.written,
    )
    return replace(method, plan=plan, name=f"{method.name}+{kind_named(name.removeprefix('+'))}")


def _texts_named(name: str) -> CaptionPlan:
    """The texts of a method or a rewrite."""
    own.refresh(name)
    if own.is_file(name):
        get_rewrite(name)  # says what is wrong with the file
        return CaptionPlan(rewrites=(name,))
    if name in _FROM_FILES or name in rewrite_names():
        return CaptionPlan(rewrites=(name,))
    found = _method_named(name)
    if found is None:
        known = [*method_names(), *rewrite_names(), *_FROM_FILES]
        raise UsageError(f"--texts +{name}: no method or rewrite '{name}'; {_hint(name, known)}")
    plan = found.plan
    if not plan.kinds:
        raise UsageError(f"--texts +{name}: {found.name} adds no texts to captions")
    return plan


def _method_named(name: str) -> Method | None:
    """The method of that name, or of that name with "-clip" after it."""
    names = method_names()
    full = next((each for each in (name, f"{name}{_SUFFIX}") if each in names), None)
    return None if full is None else load_recipe(full)()


def _with_terms(method: Method, name: str) -> Method:
    if not name.startswith("+"):
        raise UsageError(f"--terms {name}: write +METHOD or +METHOD.TERM")
    own_term = loss_named(name[1:])
    if own_term is not None:
        return _with_own_term(method, own_term, name)
    origin, _, wanted = name[1:].partition(".")
    found = _method_named(origin)
    if found is None:
        raise UsageError(f"--terms {name}: no method '{origin}'; {_hint(origin, method_names())}")
    if found.images != SINGLE:
        raise UsageError(
            f"--terms {name}: the terms of {found.name} need its own batches of images"
        )
    known = [term.name for term in found.losses]
    if wanted and wanted not in known:
        raise UsageError(f"--terms {name}: no term '{wanted}'; {_hint(wanted, known)}")
    has_texts = bool(set(found.kinds) & set(method.kinds))
    taken = {term.name for term in method.losses}
    added: list[LossTerm] = []
    for term in found.losses:
        if wanted not in ("", term.name):
            continue
        if term.reads and not has_texts:
            raise UsageError(
                f"--terms {name}: {method.name} has none of its texts; add --texts +{found.name}"
            )
        full = f"{found.name}.{term.name}" if term.name in taken else term.name
        loss = OnlyKinds(term.loss, found.kinds) if term.reads else term.loss
        added.append(replace(term, name=full, loss=loss))
    if any(term.head or term.extra for term in added):
        has = {each.name for each in method.plan.texts}
        more = (each for each in found.plan.texts if not each.kinds and each.name not in has)
        plan = replace(method.plan, texts=(*method.plan.texts, *more))
        method = replace(method, plan=plan)
    return _with_losses(method, added, found.teacher, name)


def _with_losses(
    method: Method, added: Sequence[LossTerm], teacher: Teacher | None, name: str
) -> Method:
    """The method with terms of another, whose teacher comes with those that need one."""
    if any(term.needs_teacher for term in added):
        teacher = teacher or method.teacher or Teacher()
        if method.teacher not in (None, teacher):
            raise UsageError(
                f"--terms {name}: {method.name} has another teacher already "
                f"(decay {method.teacher.decay:g}, not {teacher.decay:g}); give both the same"
            )
        method = replace(method, teacher=teacher)
    return replace(method, losses=(*method.losses, *added))


def _with_own_term(method: Method, term: LossTerm, name: str) -> Method:
    if term.reads and not method.kinds:
        raise UsageError(
            f"--terms {name}: '{term.name}' reads texts beside captions, and {method.name} has "
            "none; add some with --texts +NAME"
        )
    taken = {each.name for each in method.losses}
    if term.name in taken:
        raise UsageError(
            f"--terms {name}: {method.name} has a term '{term.name}' already; give yours another "
            "name"
        )
    return _with_losses(method, [term], method.teacher, name)


def loss_named(name: str) -> LossTerm | None:
    """A loss term from outside the package.

    Args:
        name: The path of a Python file with a `LossTerm` at its top level, FILE.py, or
            FILE.py:TERM of several; or what another package calls one (entry-point group
            `compoclip.losses`).

    Returns:
        The term; None when no package adds one of that name.

    Raises:
        UsageError: When the file has no such term.
        CompoclipError: When the file, or the package, cannot be read or run.
    """
    if own.is_file(name):
        own.refresh(name)
        values = own.parts_of(name).values()
        terms = {each.name: each for each in values if isinstance(each, LossTerm)}
        return own.chosen(name, terms, "loss terms", "a LossTerm at the top level")
    point = own.installed("losses").get(name)
    if point is None:
        return None
    found = own.imported(point, "loss")
    if not isinstance(found, LossTerm):
        raise CompoclipError(
            f"entry point {point.value!r} of loss {name!r} must name a LossTerm; update or "
            "uninstall that package"
        )
    return found


def _note_unread(method: Method) -> None:
    """Say which texts are encoded for nothing."""
    read = {role for term in method.losses for role in term.reads}
    roles = {role for role, _ in _roles(method.plan)}
    for role in sorted(roles - read):
        names = [name for of, name in _roles(method.plan) if of == role]
        note(
            f"{method.name}: no loss term reads the {role.name.lower()} texts "
            f"({', '.join(names)}); --terms +METHOD adds the terms of a method that does"
        )


def _roles(plan: CaptionPlan) -> list[tuple[Role, str]]:
    """The roles that texts of a plan have, and the names of these texts."""
    found = []
    for name in plan.rewrite_names:
        positive = name in (GIVEN_POSITIVE, OTHER_CAPTION, WRITTEN_POSITIVE)
        if name not in _FROM_FILES:
            positive = get_rewrite(name).keeps_meaning
        found.append((Role.POSITIVE if positive else Role.NEGATIVE, name))
    texts = [each for each in plan.texts if each.kinds]
    return found + [(role, each.label) for each in texts for role in each.roles]


def _with_setting(method: Method, setting: str) -> Method:
    path, equals, value = setting.partition("=")
    part, _, rest = path.strip().partition(".")
    if not equals or not rest:
        raise UsageError(f"--set {setting}: write PATH=VALUE, such as terms.clip.weight=0.5")
    if part == "terms":
        return replace(method, losses=_weighted(method.losses, rest, value, setting))
    where = {"texts": "plan"}.get(part, part)
    if part not in _PARTS:
        raise UsageError(f"--set {setting}: no part '{part}'; {_hint(part, _PARTS)}")
    target = getattr(method, where)
    if target is None:
        raise UsageError(f"--set {setting}: {method.name} has no {part}")
    changed: Any = {where: _set(target, rest.split("."), value, setting)}
    return replace(method, **changed)


def _weighted(
    losses: Iterable[LossTerm], path: str, value: str, setting: str
) -> tuple[LossTerm, ...]:
    name, _, attribute = path.rpartition(".")
    terms = {term.name: term for term in losses}
    if attribute != "weight":
        raise UsageError(f"--set {setting}: of a term only the weight can be set")
    if name not in terms:
        raise UsageError(f"--set {setting}: no term '{name}'; {_hint(name, list(terms))}")
    weight = _converted(0.0, value, setting)
    if not 0 <= weight < float("inf"):
        raise UsageError(f"--set {setting}: a weight must be 0 or more")
    terms[name] = replace(terms[name], weight=weight)
    kept = tuple(term for term in terms.values() if term.weight > 0)
    if not kept:
        raise UsageError(f"--set {setting}: leaves the method without a loss")
    return kept


def _set(target: Any, path: Sequence[str], value: str, setting: str) -> Any:
    """A frozen dataclass with the field at `path` changed."""
    names = [each.name for each in fields(target)] if is_dataclass(target) else []
    if isinstance(target, CaptionPlan):  # a sort of texts goes by its name
        sorts = {**BY_VALUE, **{each.name: each for each in target.texts}}
        if found := sorts.get(path[0]):
            only = [each.name for each in fields(found)]
            if len(path) == 1 and len(only) > 1:
                raise UsageError(f"--set {setting}: cannot be set in this way")
            sorts[found.name] = _set(found, path[1:] or only, value, setting)
            place = dict.fromkeys([*(each.name for each in target.texts), found.name])
            return replace(target, texts=tuple(sorts[name] for name in place))
        names = [*(name for name in names if name != "texts"), *sorts]
    if path[0] not in names:
        raise UsageError(f"--set {setting}: no '{path[0]}'; {_hint(path[0], names)}")
    current = getattr(target, path[0])
    if len(path) > 1:
        if not is_dataclass(current):
            raise UsageError(f"--set {setting}: {path[0]} has no '{path[1]}'")
        changed = _set(current, path[1:], value, setting)
    else:
        changed = _converted(current, value, setting)
    return replace(target, **{path[0]: changed})


def _converted(current: T, value: str, setting: str) -> T:
    """`value` as what `current` is: a flag, a number, a text, a list of numbers or names."""
    result: Any = None
    value = value.strip()
    try:
        match current:
            case bool():
                result = {"true": True, "false": False, "1": True, "0": False}[value.lower()]
            case int() | float() | str():
                result = type(current)(value)
            case tuple() if current and not any(isinstance(each, OneOf) for each in current):
                kind = type(current[0])
                if isinstance(current[0], int | float | str):
                    result = tuple(kind(each) for each in value.split(","))
            case _:
                pass
    except (ValueError, KeyError):
        raise UsageError(
            f"--set {setting}: '{value}' is not {_KINDS.get(type(current), 'a value of its kind')}"
        ) from None
    if result is None:
        raise UsageError(f"--set {setting}: cannot be set in this way")
    typed: T = result
    return typed


_KINDS = types.MappingProxyType({bool: "true or false", int: "a whole number", float: "a number"})


def _hint(name: str, known: Sequence[str]) -> str:
    short = [each.removesuffix(_SUFFIX) for each in known if each.endswith(_SUFFIX)]
    candidates = list(dict.fromkeys([*known, *short]))
    close = difflib.get_close_matches(name.replace("_", "-").lower(), candidates)
    close = close or difflib.get_close_matches(name, candidates)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
