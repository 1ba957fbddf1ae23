"""The Hugging Face hub: models fetched from it, and folders put on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compoclip.errors import CompoclipError, UsageError
from compoclip.files import read_json
from compoclip.models import adapter, directory, hf_folder, peft_lora
from compoclip.models.card import CARD, CardResult, write_card
from compoclip.models.loaded import MERGES, RECORD

HUB, LOCAL = "hf-hub:", "local-dir:"
_SMALL = ("*.json", "*.txt", "*.gz", "*.model")
_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.*")
_HF_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    MERGES,
)
_SHARDS = "model.safetensors.index.json"


@dataclass(frozen=True)
class Pushed:
    """What was put on the hub: where it is, and the files."""

    url: str
    files: tuple[str, ...]


def plain_spec(spec: str) -> str:
    """A model as a user names it, without open_clip's "local-dir:".

    Raises UsageError when there is no such folder.
    """
    if not spec.startswith(LOCAL):
        return spec
    folder = spec.removeprefix(LOCAL)
    if not Path(folder).is_dir():
        raise UsageError(f"{spec}: no such folder")
    return folder


def local_folder(spec: str) -> str:
    """`plain_spec`, and the folder that a repository of the hub is fetched to."""
    return str(fetch(spec)) if spec.startswith(HUB) else plain_spec(spec)


def fetch(spec: str) -> Path:
    """The folder with the files of hf-hub:ORG/REPO that a model needs, from the network or the
    cache. Raises CompoclipError when it cannot be had.
    """
    from huggingface_hub import snapshot_download

    repository = spec.removeprefix(HUB)
    with downloading(spec):
        folder = Path(snapshot_download(repository, allow_patterns=[*_SMALL, *_WEIGHTS]))
        weights = [adapter.WEIGHTS] if adapter.is_adapter(folder) else []
        if peft_lora.is_peft(folder):
            weights = [peft_lora.WEIGHTS]
        elif hf_folder.is_hf_folder(folder):  # safetensors if there are any
            weights = list(_HF_WEIGHTS)
        for pattern in weights:
            folder = Path(snapshot_download(repository, allow_patterns=[*_SMALL, pattern]))
            if any(folder.glob(pattern)):
                break
        return folder


@contextmanager
def downloading(spec: str) -> Iterator[None]:
    """Any failure to fetch weights as one line with the remedy."""
    try:
        yield
    except CompoclipError:
        raise
    except Exception as error:  # network libraries raise dozens of unrelated types
        if _offline():
            raise CompoclipError(
                f"{spec}: could not be downloaded: HF_HUB_OFFLINE forbids the network and the "
                "cache has it not; unset it, or fetch the model once where there is a network"
            ) from error
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise CompoclipError(
            f"{spec}: could not be downloaded ({first}); connect to the network once, "
            "or give a file with ARCHITECTURE@FILE"
        ) from error


def publish(
    folder: Path,
    repository: str,
    *,
    results: Sequence[CardResult] = (),
    private: bool = False,
    message: str = "",
) -> Pushed:
    """Put a model folder on the hub in one commit: weights, configuration, tokenizer, card.

    Nothing else in the folder is uploaded. results: written into the card first; without, a card
    that is there stays as it is. Raises CompoclipError when the folder is no model's or incomplete,
    or the hub cannot be reached or refuses; UsageError for an impossible name.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    names = model_files(folder)
    if results or (RECORD in names and CARD not in names):
        write_card(folder, results)
        names = model_files(folder)
    require_pushable(repository)
    api: Any = HfApi()
    try:
        api.create_repo(repository, private=True if private else None, exist_ok=True)
        made = api.create_commit(
            repository,
            [CommitOperationAdd(name, folder / name) for name in names],
            commit_message=message or "Upload a model written by compoclip",
        )
    except Exception as error:  # no token, no right, no network: each has types of its own
        first = " ".join(str(error).split())[:200] or type(error).__name__
        raise CompoclipError(
            f"{repository}: could not be pushed ({first}); log in with `hf auth login` or set "
            "HF_TOKEN to a token that may write there"
        ) from error
    return Pushed(str(getattr(made, "repo_url", "") or made.commit_url), tuple(names))


def require_pushable(repository: str) -> None:
    """Find out before long work what would forbid to push after it, as far as is known here.

    Raises UsageError for an impossible name, CompoclipError when HF_HUB_OFFLINE is set.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UsageError(f"{repository}: not a name on the hub ({error})") from None
    if _offline():
        raise CompoclipError(f"{repository}: HF_HUB_OFFLINE forbids the network; unset it to push")


def model_files(folder: Path) -> list[str]:
    """The files of a model folder that belong on the hub.

    Raises CompoclipError when it is no folder that this program writes, or has no safetensors.
    """
    if (folder / directory.CONFIG).is_file():
        needed = [directory.CONFIG, directory.WEIGHTS]
        more: tuple[str, ...] = _TOKENIZER
    elif adapter.is_adapter(folder):
        needed, more = [adapter.RECORD, adapter.WEIGHTS], ()
    elif peft_lora.is_peft(folder):
        needed, more = [peft_lora.CONFIG, peft_lora.WEIGHTS], ()
    elif folder.is_dir() and hf_folder.is_hf_folder(folder):
        needed = [hf_folder.CONFIG, *_hf_weights(folder)]
        more = (hf_folder.IMAGES, *_TOKENIZER)
    elif (folder / "image.onnx").is_file():
        needed = ["image.onnx", "text.onnx"]
        more = ("image.onnx.data", "text.onnx.data", "preprocess.json", *_TOKENIZER)
    else:
        raise CompoclipError(
            f"{folder}: not a model folder; give RUN/model, RUN/adapter or what convert wrote"
        )
    for name in needed:
        if not (folder / name).is_file():
            raise CompoclipError(f"{folder}: has no {name}; write the folder again with convert")
    return [*needed, *(n for n in (*more, RECORD, CARD) if (folder / n).is_file())]


def _hf_weights(folder: Path) -> list[str]:
    """The weights of a transformers folder, in one file or several."""
    if not (folder / _SHARDS).is_file():
        return [hf_folder.WEIGHTS]
    index = read_json(folder / _SHARDS)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    names = sorted({str(name) for name in (shards or {}).values()})
    if not names or any(Path(name).name != name or name.startswith(".") for name in names):
        raise CompoclipError(f"{folder / _SHARDS}: its weight_map names no files of the folder")
    return [_SHARDS, *names]


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
