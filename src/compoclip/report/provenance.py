"""Where every number comes from: models, data, versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compoclip.report.study import Study
from compoclip.report.wording import count

_FIELDS = {
    "architecture": "architecture",
    "weights": "weights (hash)",
    "base": "trained from (hash)",
    "adapter": "adapter",
    "activation": "activation",
    "tokenizer": "tokenizer",
    "context_length": "context length",
    "image_size": "image size",
    "image_mean": "image mean",
    "image_std": "image deviation",
    "interpolation": "interpolation",
    "resize_mode": "resizing",
}


@dataclass(frozen=True)
class Sheet:
    """A plain table. head: column headings, the first for the row headings."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def provenance(study: Study) -> tuple[Sheet, ...]:
    """Tables of model identities, benchmarks and library versions."""
    return (_models(study), _benchmarks(study), _versions(study))


def _models(study: Study) -> Sheet:
    identities = {m: next(iter(study.results[m].values())).identity for m in study.models}
    by_weights = {i.get("weights"): m for m, i in identities.items() if i.get("weights")}
    rows = []
    for key, label in _FIELDS.items():
        cells = []
        for identity in identities.values():
            text = _text(identity.get(key))
            if key == "base" and identity.get("base") in by_weights:
                text += f" = {by_weights[identity['base']]}"
            cells.append(text)
        rows.append((label, *cells))
    return Sheet("Model identities", ("", *study.models), tuple(rows))


def _text(value: Any) -> str:
    if value in (None, "", [], ()):
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in value)
    return str(value)


def _benchmarks(study: Study) -> Sheet:
    head = ("benchmark", "annotations (hash)", "protocol", "ties", "rows left out", "seconds")
    rows = []
    for name in study.benchmarks:
        measured = [study.results[m][name] for m in study.models if name in study.results[m]]
        one = measured[0]
        ties = ", ".join(
            f"{part}: {policy}" if part else policy for part, policy in one.tie_policy.items()
        )
        left_out = ", ".join(f"{count(n)} × {why}" for why, n in one.left_out.items() if n)
        seconds = " / ".join(f"{each.seconds:.0f}" for each in measured)
        rows.append(
            (name, one.data_hash or "–", str(one.protocol), ties, left_out or "none", seconds)
        )
    return Sheet("Benchmarks (seconds: by model, in the order above)", head, tuple(rows))


def _versions(study: Study) -> Sheet:
    packages: dict[str, dict[str, None]] = {}
    for model in study.models:
        for each in study.results[model].values():
            for package, version in each.versions.items():
                packages.setdefault(package, {})[version] = None  # a set that keeps the order
    return Sheet(
        "Versions used when measuring",
        ("package", "version"),
        tuple((package, ", ".join(versions)) for package, versions in packages.items()),
    )
