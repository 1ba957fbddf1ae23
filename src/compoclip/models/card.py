"""The model card of a checkpoint: README.md beside the weights, made from its own record."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from compoclip.files import write_atomically
from compoclip.models.architecture import BLIP
from compoclip.models.config import ModelIdentity, read_config
from compoclip.models.hf_folder import is_hf_folder
from compoclip.models.loaded import MERGES, RECORD, read_record

CARD = "README.md"
_RUN = {"steps": "steps", "images": "images seen", "texts": "texts seen"}
_LOST = {"skipped": "unreadable images skipped", "truncated": "texts cut to the context"}


@dataclass(frozen=True)
class CardResult:
    """One row of the results table. value, chance in [0, 1]; low, high: the 95 %
    interval, None where there is none; n: items measured."""

    benchmark: str
    metric: str
    value: float
    low: float | None
    high: float | None
    chance: float
    n: int


def write_card(folder: Path, results: Sequence[CardResult] = ()) -> Path:
    """Write the card into a checkpoint folder, in place of an older one; returns its path.

    Raises CompoclipError when the folder has no readable record, or cannot be written.
    """
    text = card_of(folder, results)
    content = text.encode("utf-8", "backslashreplace")  # a lone surrogate is no UTF-8
    write_atomically(folder / CARD, lambda place: place.write_bytes(content))
    return folder / CARD


def card_of(folder: Path, results: Sequence[CardResult] = ()) -> str:
    """The card of a checkpoint folder, from its compoclip.json. results: rows of its table.

    Raises CompoclipError when the folder has no readable record.
    """
    identity, provenance = read_record(folder / RECORD)
    return card_text(
        identity,
        provenance,
        results,
        own_merges=(folder / MERGES).is_file(),
        transformers=is_hf_folder(folder),
        alone=_is_blip(folder),
    )


def card_text(
    identity: ModelIdentity,
    provenance: Mapping[str, Any],
    results: Sequence[CardResult] = (),
    *,
    own_merges: bool = False,
    transformers: bool = False,
    alone: bool = False,
) -> str:
    """The card in Markdown, with the header that the Hugging Face hub reads.

    own_merges: the tokenizer's merges lie beside the weights. transformers: the folder has that
    library's layout, not open_clip's. alone: nothing but compoclip reads the folder. Of an absolute
    path in the provenance only the last name is told, except in the description of the data, which
    is the user's own.
    """
    method = str(provenance.get("method") or "")
    title = f"{identity.architecture}, {method}" if method else identity.architecture
    parts = [
        _header("transformers" if transformers else "" if alone else "open_clip", title, results),
        f"# {_inline(title)}",
        "A CLIP-style dual encoder: cosines of image and text features say how well they match. "
        "Written by compoclip; `compoclip.json` has this record for machines.",
        "## How to load",
        _loading(own_merges, transformers, alone),
        "## Identity",
        _table(("", ""), _identity_rows(identity)),
        "## How it was made",
        *_making(provenance),
        "## Results",
        _results(results),
    ]
    return "\n\n".join(parts) + "\n"


def _is_blip(folder: Path) -> bool:
    """Whether the folder holds a BLIP in compoclip's own layout."""
    file = folder / "open_clip_config.json"
    return file.is_file() and BLIP in read_config(file).model_cfg


def _header(library: str, title: str, results: Sequence[CardResult]) -> str:
    lines = [
        *([f"library_name: {library}"] if library else []),
        "pipeline_tag: zero-shot-image-classification",
        "tags: [clip, compositionality, compoclip]",
        *_model_index(title, results),
    ]
    return "\n".join(["---", *lines, "---"])


def _model_index(title: str, results: Sequence[CardResult]) -> list[str]:
    """The results as the hub reads them; values are shares of 1. JSON is YAML, too."""
    if not results:
        return []
    lines = ["model-index:", f"- name: {json.dumps(title)}", "  results:"]
    for each in results:
        name = json.dumps(each.benchmark, ensure_ascii=False)
        metric = json.dumps(each.metric, ensure_ascii=False)
        lines += [
            "  - task: {type: zero-shot-image-classification}",
            f"    dataset: {{type: {json.dumps(each.benchmark.split(' ')[0])}, name: {name}}}",
            f"    metrics: [{{type: {metric}, name: {metric}, value: {round(each.value, 6)}}}]",
        ]
    return lines


def _loading(own_merges: bool, transformers: bool, alone: bool) -> str:
    """Code for this folder; FOLDER stands for where it lies."""
    if transformers:
        plain = (
            "from transformers import CLIPModel, CLIPProcessor\n\n"
            'model = CLIPModel.from_pretrained("FOLDER").eval()\n'
            'processor = CLIPProcessor.from_pretrained("FOLDER")'
        )
    else:
        merges = f', bpe_path="FOLDER/{MERGES}"' if own_merges else ""
        plain = (
            "import open_clip\n\n"
            'model, _, preprocess = open_clip.create_model_and_transforms("local-dir:FOLDER")\n'
            f'tokenizer = open_clip.get_tokenizer("local-dir:FOLDER"{merges})\n'
            "model.eval()"
        )
    own = (
        "from compoclip.models.checkpoint import load_model\n\n"
        'model = load_model("FOLDER")  # .encoder, .tokenizer, .preprocess; the identity is checked'
    )
    blocks = "\n\n".join(f"```python\n{code}\n```" for code in ([own] if alone else [plain, own]))
    return (
        "`FOLDER` is where this file lies. Activation, tokenizer and image statistics come with "
        f"it.\n\n{blocks}\n\n"
        "On the command line: `compoclip evaluate FOLDER --on ...`, `compoclip play FOLDER`."
    )


def _identity_rows(identity: ModelIdentity) -> list[tuple[str, str]]:
    rows = [
        ("architecture", identity.architecture),
        ("activation", identity.activation),
        ("tokenizer", identity.tokenizer),
        ("context length", f"{identity.context_length} tokens"),
        ("image size", " x ".join(map(str, identity.image_size))),
        ("image mean", ", ".join(f"{v:.6g}" for v in identity.image_mean)),
        ("image deviation", ", ".join(f"{v:.6g}" for v in identity.image_std)),
        ("resizing", f"{identity.resize_mode}, {identity.interpolation}"),
        ("adapter", f"{identity.adapter} (merged)" if identity.adapter else "none"),
        ("trained from (hash)", identity.base or "not recorded"),
        ("weights (hash)", identity.weights),
    ]
    return [(name, f"`{_cell(value)}`") for name, value in rows]


def _making(provenance: Mapping[str, Any]) -> list[str]:
    """Tables of recipe, data and settings; keys that no table shows are told as they are."""
    if not provenance:
        return ["Not recorded."]
    left = {key: value for key, value in provenance.items() if value not in (None, {}, [], "")}
    rows: list[tuple[str, str]] = []
    if "method" in left:
        rows.append(("recipe", str(left.pop("method"))))
    if "data" in left:
        rows.append(("data", str(left.pop("data"))))
    if "terms" in left:
        rows.append(("losses", _terms(left.pop("terms"))))
    run = left.pop("run", None)
    if isinstance(run, Mapping):
        rows += [(text, _count(run[key])) for key, text in _RUN.items() if key in run]
        rows += [(text, _count(run[key])) for key, text in _LOST.items() if run.get(key)]
        left_out = run.get("left_out")
        if isinstance(left_out, Mapping):
            rows += [(f"left out: {why}", _count(n)) for why, n in left_out.items()]
    for key in ("seed", "precision", "torch"):
        if key in left:
            rows.append((key, str(left.pop(key))))
    parts = [_table(("", ""), [(_cell(a), _cell(b)) for a, b in rows])] if rows else []
    for key, value in left.items():
        parts += [f"{_inline(key)}:", _code(value)]
    return parts


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(_public(value))


def _terms(terms: Any) -> str:
    """Losses with their weights, as "1 x clip + 0.5 x global_hn"."""
    try:
        named = [
            f"{each['weight']:g} x {each['name']}" + (f" (on {each['on']})" if each["on"] else "")
            for each in terms
        ]
    except (KeyError, TypeError, ValueError):  # a record of another kind
        return json.dumps(_public(terms))
    return " + ".join(named)


def _results(results: Sequence[CardResult]) -> str:
    if not results:
        return "None recorded. Measure with `compoclip evaluate FOLDER --on BENCHMARK`."
    rows = [
        (
            _cell(each.benchmark),
            _cell(each.metric),
            f"{100 * each.value:.1f}",
            "-"
            if each.low is None or each.high is None
            else f"{100 * each.low:.1f} to {100 * each.high:.1f}",
            f"{100 * each.chance:.1f}",
            f"{each.n:,}",
        )
        for each in results
    ]
    head = ("benchmark", "metric", "value (%)", "95 % interval", "chance", "items")
    return _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _public(value: Any) -> Any:
    """The value with absolute paths cut to their last name."""
    if isinstance(value, Mapping):
        return {str(key): _public(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_public(each) for each in value]
    if isinstance(value, str):
        name, at, file = value.rpartition("@")  # ARCHITECTURE@FILE
        for path in (PurePosixPath(file), PureWindowsPath(file)):
            if path.is_absolute():
                return f"{name}{at}{path.name}"
    return value


def _code(value: Any) -> str:
    text = json.dumps(_public(value), indent=2, ensure_ascii=False, default=str)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}json\n{text}\n{fence}"


def _inline(text: str) -> str:
    """On one line, without characters that mean something in Markdown."""
    return re.sub(r"([\\`*<>\[\]|#])", r"\\\1", " ".join(text.split()))


def _cell(text: str) -> str:
    """On one line, fit for a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
