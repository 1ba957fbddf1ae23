"""The Hugging Face hub: upload model folders, and write their model card.

The card is README.md next to the weights, made from the checkpoint's record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, NamedTuple

from compoclip.errors import CompoclipError
from compoclip.files import reason, write_atomically
from compoclip.models.checkpoint import format_of
from compoclip.models.config import (
    MERGES,
    OPEN_CLIP,
    RECORD,
    ModelIdentity,
    as_json,
    read_config,
    read_record,
)
from compoclip.models.names import require_pushable

if TYPE_CHECKING:
    from jinja2 import Template


class Pushed(NamedTuple):
    """Where a folder was uploaded to, and the files."""

    url: str
    files: list[str]


def publish(
    folder: Path,
    repository: str,
    *,
    results: Sequence[CardResult] = (),
    private: bool = False,
    message: str = "",
) -> Pushed:
    """Upload a model folder to the Hugging Face hub in one commit: weights, configuration,
    tokenizer and card, no other files.

    Args:
        folder: RUN/model, RUN/adapter, or any folder that `convert` wrote.
        repository: USER/NAME or ORGANISATION/NAME; created if missing.
        results: Rows for the card; without any, an existing card is not changed.
        private: Make a new repository private.
        message: Message of the commit.

    Raises:
        UsageError: `repository` is not a valid name.
        CompoclipError: The folder is incomplete or not a model, or the hub cannot be reached or
            refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    names = model_files(folder)
    if results or (RECORD in names and CARD not in names):
        write_card(folder, results)
        names = model_files(folder)
    require_pushable(repository)
    content: dict[str, Path | bytes] = {name: folder / name for name in names}
    if {OPEN_CLIP, MERGES} <= content.keys():  # without the place of the merges on this machine
        content[OPEN_CLIP] = as_json(read_config(folder / OPEN_CLIP).to_json()).encode()
    api: Any = HfApi()
    try:
        api.create_repo(repository, private=True if private else None, exist_ok=True)
        commit = api.create_commit(
            repository,
            [CommitOperationAdd(name, data) for name, data in content.items()],
            commit_message=message or "Upload a model written by compoclip",
        )
    except Exception as error:  # no token, no right, no network: each has types of its own
        raise CompoclipError(
            f"{repository}: could not be pushed ({reason(error)}); log in with `hf auth login` or "
            "set HF_TOKEN to a token that may write there"
        ) from error
    return Pushed(str(getattr(commit, "repo_url", "") or commit.commit_url), names)


def model_files(folder: Path) -> list[str]:
    """Return the files of a model folder that belong on the hub.

    Raises CompoclipError when it is no folder that this program writes, or has no safetensors.
    """
    if not folder.is_dir():
        raise CompoclipError(
            f"{folder}: not a model folder; give RUN/model, RUN/adapter or what convert wrote"
        )
    needed, more = format_of(str(folder)).hub_files(folder)
    for name in needed:
        if not (folder / name).is_file():
            raise CompoclipError(f"{folder}: has no {name}; write the folder again with convert")
    return [*needed, *(n for n in (*more, RECORD, CARD) if (folder / n).is_file())]


CARD = "README.md"
_ROWS = {
    "steps": "steps",
    "images": "images seen",
    "texts": "texts seen",
    "skipped": "unreadable images skipped",
    "truncated": "texts cut to the context",
    "loss": "loss of the last step",
    "chance": "the same of equal scores",
}
_LOST = ("skipped", "truncated")  # rows that say nothing when they are 0
_TASK = "zero-shot-image-classification"


@dataclass(frozen=True)
class CardResult:
    """One row of the results table. value, chance in [0, 1]; low, high: the 95 %
    interval, None without one; n: items measured."""

    benchmark: str
    metric: str
    value: float
    low: float | None
    high: float | None
    chance: float
    n: int


def write_card(folder: Path, results: Sequence[CardResult] = ()) -> Path:
    """Write the model card of a checkpoint folder, replacing an older one.

    Args:
        folder: A folder with a `compoclip.json`.
        results: Rows of the table of results.

    Raises:
        CompoclipError: The folder has no readable record, or cannot be written.
    """
    identity, provenance = read_record(folder / RECORD)
    library, code = format_of(str(folder)).snippet(folder)
    text = card_text(identity, provenance, results, library=library, code=code)
    content = text.encode("utf-8", "backslashreplace")  # a lone surrogate is no UTF-8
    write_atomically(folder / CARD, lambda place: place.write_bytes(content))
    return folder / CARD


def card_text(
    identity: ModelIdentity,
    provenance: Mapping[str, Any],
    results: Sequence[CardResult] = (),
    *,
    library: str = "",
    code: str = "",
) -> str:
    """Return the card in Markdown, with the header that the Hugging Face hub reads.

    library: the hub's name of the library that loads the folder with `code`; "" if only compoclip
    does. Absolute paths in the provenance are cut to their last name, except in the description of
    the data.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    method = str(provenance.get("method") or "")
    built_in = not identity.architecture.startswith("config-")  # a hash is no name for people
    name = identity.architecture if built_in else "CLIP"
    title = f"{name}, {method}" if method else name
    measured = [
        EvalResult(_TASK, r.benchmark.split(" ")[0], r.benchmark, r.metric, round(r.value, 6))
        for r in results
    ]
    data = ModelCardData(
        library_name=library or None,
        pipeline_tag=_TASK,
        tags=["clip", "compositionality", "compoclip"],
        model_name=title if measured else None,
        eval_results=measured or None,
    )
    left = {key: value for key, value in provenance.items() if value not in (None, {}, [], "")}
    stated = _take_rows(left)
    record = json.dumps(_public(left), indent=2, ensure_ascii=False, default=str) if left else ""
    content = _template().render(
        card_data=data.to_yaml(),
        title=re.sub(r"([\\`*<>\[\]|#])", r"\\\1", " ".join(title.split())),
        code=code,
        identity=identity,
        provenance=stated,
        record=record,
        fence="`" * max([3, *(1 + len(run) for run in re.findall("`+", record))]),
        results=results,
        cell=lambda text: " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;"),
    )
    return f"{ModelCard(content)}\n"


@cache
def _template() -> Template:
    """The card's template, whose compilation takes longer than all else that a card takes."""
    from jinja2 import Template

    source = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    template: Template = Template(source)
    return template


def _take_rows(left: dict[str, Any]) -> dict[str, str]:
    """Return the rows on recipe, data and run, and take them out of a provenance."""
    words = (("method", "recipe"), ("data", "data"))
    rows = {name: str(left.pop(key)) for key, name in words if key in left}
    if "terms" in left:
        terms = left.pop("terms")
        try:
            rows["losses"] = " + ".join(
                f"{term['weight']:g} x {term['name']}"
                + (f" (on {term['on']})" if term["on"] else "")
                for term in terms
            )
        except (KeyError, TypeError, ValueError):  # a record of another kind
            rows["losses"] = json.dumps(_public(terms))
    run = left.pop("run", None)
    if isinstance(run, Mapping):
        filled = {k: value for k, value in run.items() if value is not None}
        facts = {
            text: filled[k]
            for k, text in _ROWS.items()
            if k in filled
            if filled[k] or k not in _LOST
        }
        if isinstance(out := run.get("left_out"), Mapping):
            facts |= {f"left out: {reason}": count for reason, count in out.items()}
        for name, value in facts.items():
            number = isinstance(value, int | float)
            rows[name] = f"{value:,}" if number else str(_public(value))
    return rows | {k: str(left.pop(k)) for k in ("seed", "precision", "torch") if k in left}


def _public(value: Any) -> Any:
    """Return the value with absolute paths cut to their last name."""
    if isinstance(value, Mapping):
        return {str(key): _public(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_public(element) for element in value]
    if isinstance(value, str):
        name, at, file = value.rpartition("@")  # ARCHITECTURE@FILE
        for path in (PurePosixPath(file), PureWindowsPath(file)):
            if path.is_absolute():
                return f"{name}{at}{path.name}"
    return value
