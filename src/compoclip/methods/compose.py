"""A method made of the parts of several: more texts, more loss terms, other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

from compoclip import plugins
from compoclip.console import note
from compoclip.data.caption_plan import CaptionPlan
from compoclip.data.images import SINGLE
from compoclip.data.text_names import (
    GIVEN_POSITIVE,
    OTHER_CAPTION,
    WRITTEN_POSITIVE,
)
from compoclip.errors import CompoclipError, UsageError
from compoclip.losses import Role, all_images_loss, similarity_distillation
from compoclip.losses.rows import OnlyKinds
from compoclip.methods.base import LossTerm, Method, Teacher, names_in, sorts_of
from compoclip.methods.registry import (
    FROM_FILES,
    TERMS,
    load_recipe,
    method_named,
    require_term,
    require_texts,
)
from compoclip.methods.settings import NOT_SO, converted, part_and_value, require_place, unknown
from compoclip.rewrites.base import get_rewrite, rewrite_names
from compoclip.rewrites.base import kind_named as rewrite_named

_ALL_IMAGES, _SIMILARITY = TERMS
_TERMS = {
    _ALL_IMAGES: LossTerm(_ALL_IMAGES, all_images_loss, needs_bank=True),
    _SIMILARITY: LossTerm(
        _SIMILARITY,
        similarity_distillation,
        reads=(Role.POSITIVE, Role.NEGATIVE),
        needs_teacher=True,
    ),
}
"""Terms of no method; texts besides captions are read where there are any."""


def compose(
    method: Method,
    texts: Sequence[str] = (),
    terms: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Method:
    """Return `method` with parts of others; `composed` records what was done, for provenance.

    texts: "+NAME" adds the texts of a method ("+mosaic", short for mosaic-clip), a rewrite, a
    rewrite in a local file ("+./my_rewrite.py"), "given", "other-caption" or, from the file
    texts.written, "written-positive" and "written-negative"; names without + replace the method's
    own texts.
    terms: "+METHOD" adds all loss terms of a method, "+METHOD.TERM" one of them; they see captions
    and that method's kinds of text. "+similarity" adds `similarity_distillation`, "+./my_loss.py"
    the `LossTerm` of a file, "+NAME" that of another package; these see all texts, as the method's
    own terms do, but for those that name the kinds they read. "+all-images" adds `all_images_loss`.
    settings: PATH=VALUE, with PATH such as terms.local_hn.weight, texts.hn_fraction, images.count
    or trains.image_tower.

    Notes on standard error texts that no term reads. Raises UsageError, with the closest names, for
    what does not exist or does not fit.
    """
    for name in method.plan.all_rewrites:
        plugins.refresh(name)
    composed, changes = method, list(method.composed)
    if texts and not texts[0].startswith("+"):  # it replaces the method's own texts
        others = tuple(part for part in method.plan.texts if not part.kinds)
        composed = replace(method, plan=replace(method.plan, texts=others, rewrites=()))
    for option, names, change in (
        ("texts", texts, _with_texts),
        ("terms", terms, _with_terms),
        ("set", settings, _with_setting),
    ):
        for name in names:
            try:
                composed = change(composed, name)
            except UsageError as error:
                raise UsageError(f"--{option} {name}: {error}") from error
            changes.append(f"{option} {name}")
    if texts or terms:
        _note_unread(composed)
    return replace(composed, composed=tuple(changes))


def _with_texts(method: Method, name: str) -> Method:
    require_texts(name)
    plan, name = method.plan, name.removeprefix("+")
    plugins.refresh(name)
    if plugins.is_file(name) or name in FROM_FILES or name in rewrite_names():
        if plugins.is_file(name):
            get_rewrite(name)  # says what is wrong with the file
        added = CaptionPlan(rewrites=(name,))
    else:
        other = load_recipe(method_named(name))()
        added = other.plan
        if not added.kinds:
            raise UsageError(f"{other.name} adds no texts to captions")
    more = tuple(part for part in added.texts if part.kinds and part not in plan.texts)
    taken = {part.name for part in plan.texts if part.kinds}
    for part in more:
        if part.name in taken:
            raise UsageError(f"{method.name} draws {part.label} already")
    plan = replace(
        plan,
        rewrites=(*plan.rewrites, *(r for r in added.rewrites if r not in plan.rewrites)),
        texts=(*plan.texts, *more),
        written=plan.written or added.written,
    )
    return replace(method, plan=plan, name=f"{method.name}+{rewrite_named(name)}")


def _with_terms(method: Method, name: str) -> Method:
    require_term(name)
    taken = {term.name for term in method.losses}
    if local := loss_named(name[1:]):
        if local.reads and not method.kinds and local.name not in _TERMS:
            raise UsageError(
                f"'{local.name}' reads further texts, and {method.name} has only captions; add "
                "texts with --texts +NAME"
            )
        if local.name in taken:
            raise UsageError(f"{method.name} has a term '{local.name}' already; rename yours")
        added, teacher = [local], method.teacher
    else:
        origin, _, term_name = name[1:].partition(".")
        other = load_recipe(method_named(origin))()
        terms = {term.name: term for term in other.losses}
        chosen = [terms[term_name]] if term_name in terms else other.losses
        misses = not set(other.kinds) & set(method.kinds)
        if other.images != SINGLE:
            raise UsageError(f"the terms of {other.name} need batches that only {other.name} makes")
        if misses and any(term.reads for term in chosen):
            raise UsageError(
                f"{method.name} has no texts of {other.name}; add --texts +{other.name}"
            )
        added, teacher = [], other.teacher
        for term in chosen:
            full = f"{other.name}.{term.name}" if term.name in taken else term.name
            loss = OnlyKinds(term.loss, other.kinds) if term.reads else term.loss
            added.append(replace(term, name=full, loss=loss))
        if any(term.head or term.extra for term in added):
            has = {part.name for part in method.plan.texts}
            more = (part for part in other.plan.texts if not part.kinds and part.name not in has)
            method = replace(method, plan=replace(method.plan, texts=(*method.plan.texts, *more)))
    if any(term.needs_teacher for term in added):
        teacher = teacher or method.teacher or Teacher()
        if method.teacher not in (None, teacher):
            raise UsageError(
                f"{method.name} already has a teacher with decay {method.teacher.decay:g}, and the "
                f"new terms need decay {teacher.decay:g}; give both the same decay"
            )
        method = replace(method, teacher=teacher)
    return replace(method, losses=(*method.losses, *added))


def loss_named(name: str) -> LossTerm | None:
    """Return a loss term of no method, or None.

    Args:
        name: "similarity"; the path of a Python file with a `LossTerm` at its top level, FILE.py,
            or FILE.py:TERM of several; or what another package calls one (entry-point group
            `compoclip.losses`).

    Raises:
        UsageError: When the file has no such term.
        CompoclipError: When the file, or the package, cannot be read or run.
    """
    if plugins.is_file(name):
        plugins.refresh(name)
        values = plugins.parts_of(name).values()
        terms = {term.name: term for term in values if isinstance(term, LossTerm)}
        return plugins.chosen(name, terms, "loss terms", "a LossTerm at the top level")
    point = plugins.installed("losses").get(name)
    if point is None:
        return _TERMS.get(name)
    loaded = plugins.imported(point, "loss")
    if not isinstance(loaded, LossTerm):
        raise CompoclipError(
            f"entry point {point.value!r} of loss {name!r} must name a LossTerm; update or "
            "uninstall that package"
        )
    return loaded


def _note_unread(method: Method) -> None:
    """Say which texts are encoded for nothing."""
    read = {role for term in method.losses for role in term.reads}
    names: dict[Role, list[str]] = {}
    for name in method.plan.rewrite_names:
        positive = name in (GIVEN_POSITIVE, OTHER_CAPTION, WRITTEN_POSITIVE)
        if name not in FROM_FILES:
            positive = get_rewrite(name).keeps_meaning
        names.setdefault(Role.POSITIVE if positive else Role.NEGATIVE, []).append(name)
    for part in method.plan.texts:
        for role in part.roles if part.kinds else ():
            names.setdefault(role, []).append(part.label)
    for role in sorted(names.keys() - read):
        note(
            f"{method.name}: no loss term reads the {role.name.lower()} texts "
            f"({', '.join(names[role])}); --terms +METHOD adds the terms of a method that does"
        )


# --- Settings: PATH=VALUE. ---


def _with_setting(method: Method, setting: str) -> Method:
    part, rest, value = part_and_value(setting)
    require_place(part, rest, method.settable, method.name)
    if part == "terms":
        name = rest.rpartition(".")[0]
        terms = {term.name: term for term in method.losses}
        terms[name] = replace(terms[name], weight=converted(float, value))
        losses = tuple(term for term in terms.values() if term.weight)
        if not losses:
            raise UsageError("leaves the method without a loss")
        return replace(method, losses=losses)
    field = "plan" if part == "texts" else part
    changed: Any = {field: _set(getattr(method, field), rest.split("."), value)}
    return replace(method, **changed)


def _set(target: Any, path: Sequence[str], value: str) -> Any:
    """A frozen dataclass with the field at `path` changed."""
    if isinstance(target, CaptionPlan):  # a sort of texts goes by its name
        sorts = sorts_of(target)
        if sort := sorts.get(path[0]):
            only = [field.name for field in fields(sort)]
            if len(path) == 1 and len(only) > 1:
                raise UsageError(NOT_SO)
            sorts[sort.name] = _set(sort, path[1:] or only, value)
            place = dict.fromkeys([*(part.name for part in target.texts), sort.name])
            return replace(target, texts=tuple(sorts[name] for name in place))
    names = names_in(target)
    if path[0] not in names:
        raise unknown("", path[0], names)
    current = getattr(target, path[0])
    if len(path) == 1:
        changed = converted(get_type_hints(type(target))[path[0]], value)
    elif is_dataclass(current):
        changed = _set(current, path[1:], value)
    else:
        raise UsageError(f"{path[0]} has no '{path[-1]}'")
    return replace(target, **{path[0]: changed})
