"""Names of models, judged by themselves and by what lies on the disk: without torch, within
milliseconds. Whether a model can be loaded shows when it is."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from compoclip import plugins
from compoclip.errors import CompoclipError, UsageError, closest, require, require_package
from compoclip.files import disguised, reading
from compoclip.models.config import RECORD
from compoclip.typed import at_home

LOCAL, HUB, RANDOM, BUNDLED = "local-dir:", "hf-hub:", "random:", "bundled"
BUNDLED_KNOWS = "has only seen drawn scenes"
"""A clause on the bundled model for those who have photos, in help and messages."""
LIBRARIES = {
    "hf": ("transformers",),
    "mteb": ("mteb", "datasets"),
    "st": ("sentence_transformers",),
}
"""Libraries whose models are measured as LIBRARY:ID, also extras -> the packages that they need."""
BLIND = "blind"
"""Prefix of the name of a model that sees no image, BLIND:CAPTIONS, and its architecture."""
_FORMS = "a checkpoint folder, bundled, or ARCHITECTURE:TAG such as ViT-B-32-quickgelu:openai"
_HEAD = 9  # bytes of a file that tell its kind
INSIDE = ("model", "adapter")
"""Folders of a run that are models."""


def architectures() -> tuple[str, ...]:
    """Return the names of open_clip's architectures, with those that a program has added."""
    loaded = sys.modules.get("open_clip")
    return tuple(loaded.list_models()) if loaded else _files_of_architectures()


def _folder_of_open_clip() -> Path:
    """Return where open_clip lies: importing it loads torch."""
    package = find_spec("open_clip")
    return Path(*((package and package.submodule_search_locations) or ("open_clip",))[:1])


@cache
def _files_of_architectures() -> tuple[str, ...]:
    """Return the names by open_clip's files."""
    return tuple(sorted(file.stem for file in _folder_of_open_clip().glob("model_configs/*.json")))


def tags_of(architecture: str) -> tuple[str, ...]:
    """Return the tags of the weights that open_clip publishes of an architecture."""
    loaded = sys.modules.get("open_clip")
    if loaded:
        return tuple(loaded.list_pretrained_tags_by_model(architecture))
    return _tags_in_source().get(architecture, ())


@cache
def _tags_in_source() -> dict[str, tuple[str, ...]]:
    """Return architecture -> tags, read from the source of open_clip, as it is not imported.

    There a variable holds the weights of an architecture, `_VITB32 = dict(openai=_pcfg(...), ...)`,
    and `_PRETRAINED` has the variables by architecture. Weights with `quick_gelu=True` are also
    those of the architecture whose name ends so.
    """
    source = ast.parse((_folder_of_open_clip() / "pretrained.py").read_text(encoding="utf-8"))
    values = {
        target.id: node.value
        for node in source.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    tags: dict[str, tuple[str, ...]] = {}
    for architecture, weights in _entries(values["_PRETRAINED"]).items():
        published = _entries(values[weights.id] if isinstance(weights, ast.Name) else weights)
        quick = [tag for tag, entry in published.items() if "quick_gelu" in _entries(entry)]
        tags[architecture] = tuple(published)
        if quick:
            tags[f"{architecture}-quickgelu"] = tuple(quick)
    return tags


def _entries(node: ast.expr) -> dict[str, ast.expr]:
    """Return what `{NAME: VALUE}` or `function(NAME=VALUE)` holds by name."""
    if isinstance(node, ast.Call):
        return {word.arg: word.value for word in node.keywords if word.arg}
    pairs = zip(node.keys, node.values) if isinstance(node, ast.Dict) else ()
    return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}


def require_architecture(name: str) -> None:
    """Raise UsageError for a name that is no architecture of open_clip."""
    if name not in architectures():
        hint = closest(name, architectures())
        hint = hint if hint.startswith("did you mean") else "the names are open_clip's: ViT-B-32"
        raise UsageError(f"open_clip has no architecture '{name}'; {hint}")


def library_and_id(spec: str) -> tuple[str, str]:
    """Return the library or BLIND before a colon, and what follows it; two empty texts without one.

    A folder may be called as a library is: without a colon a name is that of a folder.
    """
    library, colon, id = spec.partition(":")
    return (library, id) if colon and library in (BLIND, *LIBRARIES) else ("", "")


def is_external(spec: str) -> bool:
    """Return whether a name is a file, a library's, a blind or another package's model."""
    library, _ = library_and_id(spec)
    return plugins.is_file(spec) or bool(library) or spec in plugins.installed("models")


def split_part(file: str) -> tuple[Path, str]:
    """Return the file, and the entry or the beginning of names, in FILE#PART; "" without one."""
    stem, _, part = file.rpartition("#")
    return (Path(stem), part) if stem and Path(stem).is_file() else (Path(file), "")


def place_of(spec: str) -> Path | None:
    """Return the file or folder that a model's name stands for; None where it names no such."""
    places = (split_part(name)[0] for name in (spec.removeprefix(LOCAL), spec.partition("@")[2]))
    return next((place for place in places if place != Path() and place.exists()), None)


def require_model(spec: str, external: bool = False) -> None:
    """Raise UsageError for what names no model.

    Args:
        spec: What a user writes for a model.
        external: Whether models of other libraries and packages will do, as for measuring.
    """
    library, id = library_and_id(spec)
    if library and not id:
        raise UsageError(f"'{spec}' names no model; write {_after(library)}")
    if external and is_external(spec):
        file = plugins.split(spec)[0]
        require(not plugins.is_file(spec) or file.is_file(), file, "no such file", UsageError)
        if library in LIBRARIES:
            require_folder_or_id(id)
            for package in LIBRARIES[library]:
                require_package(package, library, spec.partition("@")[0])
        return
    if library:
        raise UsageError(
            f"{spec}: evaluate takes such models, this command does not; name {_FORMS}"
        )
    place, _ = split_part(spec.removeprefix(LOCAL))
    if spec.startswith(LOCAL):
        require(place.is_dir(), spec, "no such folder", UsageError)
    if spec.startswith(HUB) or spec == BUNDLED:
        return
    if place.is_file():
        require_weights(place)
        return
    if place.is_dir():
        require_folder(place)
        return
    name, at, weights = spec.partition("@")
    architecture, colon, tag = spec.removeprefix(RANDOM).partition(":")
    if spec.startswith(RANDOM):
        require_architecture(architecture)
        if tag and not (tag.isdecimal() and len(tag) < 19):
            raise UsageError(f"{spec}: the seed '{tag}' is not a number below 10^18")
    elif colon:
        require_architecture(architecture)
        tags = tags_of(architecture)
        if tag not in tags:
            hint = closest(tag, tags) if tags else "it has no published weights"
            raise UsageError(f"open_clip has no weights '{tag}' for {architecture}; {hint}")
    elif at:
        require_architecture(name)
        file, _ = split_part(weights)
        require(file.is_file(), weights, "no such file of weights", UsageError)
        require_weights(file)
    else:
        raise UsageError(_unknown(spec))


def require_weights(file: Path) -> None:
    """Raise UsageError for a file that begins as none of tensors does."""
    with reading(file), file.open("rb") as stream:
        tensors = stream.read(_HEAD)[8:] == b"{"
    if not tensors and not saved_by_torch(file) and not disguised(file):
        raise UsageError(
            f"{file}: holds no weights: no .safetensors file or state dict of PyTorch; name "
            f"{_FORMS}"
        )


def saved_by_torch(file: Path) -> bool:
    """Return whether a file begins as those of `torch.save` do: a zip archive, a pickle, a tar."""
    from compoclip.archives import is_archive

    with reading(file), file.open("rb") as stream:
        start = stream.read(_HEAD)
    return start.startswith((b"PK", b"\x80")) or is_archive(file, "tar")


def require_folder_or_id(name: str) -> None:
    """Raise UsageError for a path to no folder, where the id of a repository of the hub will do."""
    is_path = name.startswith((".", "/", "~"))
    require(not is_path or Path(at_home(name)).is_dir(), name, "no such folder", UsageError)


def require_pushable(repository: str) -> None:
    """Find out before long work what would forbid to push after it, as far as is known here.

    Raises UsageError for an impossible name, CompoclipError when HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UsageError(f"{repository}: not a name on the hub ({error})") from None
    if constants.HF_HUB_OFFLINE:
        raise CompoclipError(f"{repository}: HF_HUB_OFFLINE forbids the network; unset it to push")


def require_folder(folder: Path) -> None:
    """Raise UsageError for a folder without any configuration, such as that of a run."""
    if any(any(folder.glob(pattern)) for pattern in ("*.json", "*-encoder/*.json", "*.onnx")):
        return
    inside = next((folder / name for name in INSIDE if any(folder.glob(f"{name}/*.json"))), None)
    hint = f"did you mean {inside}?" if inside else f"it has no {RECORD} and no other configuration"
    raise UsageError(f"{folder}: is not a model folder; {hint}")


def _after(library: str) -> str:
    """Return how a model of a library is written."""
    if library == BLIND:
        return f"{BLIND}:CAPTIONS"
    return f"{library}:FOLDER or {library}:ORG/REPO"


def _unknown(spec: str) -> str:
    """Return what to say of a name that is neither on the disk nor of a known form."""
    if spec in architectures():
        return (
            f"'{spec}' is an architecture without weights: write {spec}:PRETRAINED_TAG, "
            f"{spec}@FILE or random:{spec}"
        )
    if spec in (BLIND, *LIBRARIES):
        return f"no model '{spec}'; write {_after(spec)}"
    hint = closest(spec, (BUNDLED, *architectures()))
    if hint.startswith("did you mean"):
        return f"no model '{spec}'; {hint}"
    if "/" in spec:
        return f"{spec}: no such folder or file; name {_FORMS}"
    return f"no model '{spec}'; name {_FORMS}"
