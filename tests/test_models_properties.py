"""Whatever a checkpoint's files hold, loading ends soon, in little memory, with a model or with one
line that names the file."""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from build_bpe import count_words, train_bpe, write_merges
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from compoclip.errors import CompoclipError
from compoclip.models.checkpoint import create_model, format_of, load_model, save_model
from compoclip.models.config import ModelConfig
from compoclip.models.conversion import convert, inspect_model
from compoclip.models.formats import hugging_face
from compoclip.models.formats.adapters import save_adapter
from compoclip.models.lora import Lora, attach_lora
from models_thin import config
from test_models_blip import write_blip
from test_models_siglip import write_siglip

MOST_MEMORY = 2 * 2**30  # bytes that all of this may take beyond what is taken before
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 2.5, 77, 10**7, 10**12, 10**30, float("nan"), float("inf"),
    "x", "", "12", "\ud800", "two\nlines", "../x", "/etc/passwd", [], {}, [1, 2], [[1]], {"a": 1},
)  # fmt: skip
ODD_FILES = (
    b"", b"hello", b"{}", b"[]", b"null", b"\x00" * 64, b"\xff" * 64, b"PK\x03\x04", b"\x1f\x8b",
    b"version https://git-lfs.github.com/spec/v1\n", b"<html></html>", b"[" * 2000,
)  # fmt: skip
Load = Callable[[Path], object]


# --- checkpoints of every form -------------------------------------------------------------------


def make(root: Path) -> dict[str, Load]:
    """Small checkpoints of every form in folders below `root`, and how each is loaded."""
    write_merges(train_bpe(count_words(["a red cat on a mat", "two dogs"]), 20), root / "merges.gz")
    text = {"vocab_size": 544, "width": 16, "heads": 2, "layers": 1, "context_length": 20}
    own = {**text, "tokenizer_kwargs": {"bpe_path": "merges.gz"}}
    small = config(vision={"width": 16, "layers": 1}, text=own)
    model = create_model(ModelConfig(small, folder=root))
    save_model(model, root / "open-clip")
    state = load_file(root / "open-clip" / "open_clip_model.safetensors")

    shutil.copytree(root / "open-clip", root / "pickled")
    (root / "pickled" / "open_clip_model.safetensors").unlink()
    torch.save({"state_dict": state, "epoch": 3}, root / "pickled" / "open_clip_pytorch_model.bin")

    save_model(model, root / "hf", form="hf")
    shutil.copytree(root / "hf", root / "sharded")
    theirs = load_file(root / "sharded" / "model.safetensors")
    (root / "sharded" / "model.safetensors").unlink()
    torch.save(theirs, root / "sharded" / "all.bin")
    index = {"weight_map": dict.fromkeys(theirs, "all.bin")}
    (root / "sharded" / "pytorch_model.bin.index.json").write_text(json.dumps(index))

    for tower, start in (("vision-encoder", "vi"), ("text-encoder", "te")):
        (root / "split" / tower).mkdir(parents=True)
        part = {f"model.{k}": v for k, v in theirs.items() if k.startswith(start)}
        save_file(part, root / "split" / tower / "model.safetensors")
        stated = {"hidden_act": "gelu", "num_attention_heads": 2}
        (root / "split" / tower / "config.json").write_text(json.dumps(stated))

    shutil.copyfile(root / "hf" / "bpe.txt.gz", root / "split" / "bpe.txt.gz")

    for kind, write in (("siglip", write_siglip), ("blip", write_blip)):
        if TRANSFORMERS:
            write(root / kind)
        else:  # without it they cannot be loaded, but their files are read
            shutil.copytree(root / "hf", root / kind)
            (root / kind / "config.json").write_text(json.dumps({"model_type": kind, **SIZES}))

    tuned = load_model(root / "open-clip")
    lora = Lora(rank=2)
    attach_lora(tuned.encoder.model, lora)
    save_adapter(tuned, lora, root / "adapter", provenance={"method": "x"})
    convert(str(root / "adapter"), root / "peft", "peft")
    (root / "raw").mkdir()
    torch.save({f"module.{k}": v for k, v in state.items()}, root / "raw" / "w.pt")
    (root / "safe").mkdir()
    save_file(state, root / "safe" / "w.safetensors")

    base = str(shutil.copytree(root / "open-clip", root / "base"))

    def with_base(file: str) -> Load:
        def load(folder: Path) -> None:
            inspect_model(str(folder / file), base)
            source = str(folder / file)
            format_of(source).load_on(source, base, None)

        return load

    def whole(folder: Path) -> None:
        inspect_model(str(folder))

    return {
        "open-clip": whole,
        "pickled": whole,
        "hf": whole,
        "sharded": whole,
        "split": whole,
        "siglip": whole,
        "blip": whole,
        "adapter": whole,
        "peft": lambda folder: format_of(str(folder)).load_on(str(folder), base, None),
        "raw": with_base("w.pt"),
        "safe": with_base("w.safetensors"),
    }


TRANSFORMERS = find_spec("transformers") is not None
SIZES: dict[str, Any] = {
    "text_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    "vision_config": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
}


# --- damage --------------------------------------------------------------------------------------


def spoil(folder: Path, rng: random.Random) -> None:
    """Damage one file of a checkpoint, or several."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md")
    for path in rng.choices(files, k=rng.choice((1, 1, 1, 2))):
        kind = rng.random()
        if kind < 0.05:
            path.unlink(missing_ok=True)
        elif kind < 0.1:
            path.write_bytes(rng.choice(ODD_FILES))
        elif kind < 0.15 and path.is_file():
            path.write_bytes(rng.choice(files).read_bytes() if files[0].is_file() else b"")
        elif path.is_file() and path.stat().st_size:
            content = path.read_bytes()
            path.write_bytes(_spoilt(path, content, rng))


def _spoilt(path: Path, content: bytes, rng: random.Random) -> bytes:
    deep = rng.random() < 0.7
    try:
        if path.suffix == ".json" and deep:
            data = json.loads(content)
            for _ in range(rng.choice((1, 1, 2, 3))):
                data = _with_change(data, rng)
            return json.dumps(data).encode()
        if path.suffix == ".gz" and deep:
            return gzip.compress(_bytes(gzip.decompress(content), rng))
        if path.suffix in (".pt", ".bin", ".safetensors") and deep:
            if path.suffix != ".safetensors" and rng.random() < 0.4:
                return _with_pickle(content, rng)
            return _tensors(path, rng)
    except Exception:  # damaged already
        return _bytes(content, rng)
    return _bytes(content, rng)


def _bytes(content: bytes, rng: random.Random) -> bytes:
    """Other bytes here and there, often near the start; or a piece missing, doubled or zero."""
    data = bytearray(content)
    near = min(len(data), rng.choice((8, 64, 1000, len(data))))
    start, stop = sorted(rng.randrange(near + 1) for _ in range(2))
    kind = rng.randrange(5)
    if kind == 0:
        return bytes(data[:start])
    if kind == 1:
        return bytes(data[:start] + data[start:stop] + data[start:])
    if kind == 2:
        return bytes(data[:start] + bytes(stop - start) + data[stop:])
    for _ in range(rng.choice((1, 2, 8))):
        if data:
            data[rng.randrange(near or 1) % len(data)] = rng.randrange(256)
    return bytes(data)


def _with_change(data: Any, rng: random.Random) -> Any:
    """A JSON value with something in it exchanged, left out or added."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice(list(data))
        kind = rng.random()
        if kind < 0.1:
            return {k: v for k, v in data.items() if k != key}
        if kind < 0.15:
            return {**data, rng.choice(("x", "", "a\nb", "..", key * 2)): rng.choice(VALUES)}
        return {**data, key: _with_change(data[key], rng)}
    if isinstance(data, list) and data and rng.random() < 0.7:
        place = rng.randrange(len(data))
        return [*data[:place], _with_change(data[place], rng), *data[place + 1 :]]
    return rng.choice(VALUES)


def _with_pickle(content: bytes, rng: random.Random) -> bytes:
    """A PyTorch file whose structure is damaged and whose checksums are right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, _bytes(data, rng) if name.endswith("data.pkl") else data)
    return out.getvalue()


def _tensors(path: Path, rng: random.Random) -> bytes:
    """The same file with another tensor in place of one."""
    plain = path.suffix == ".safetensors"
    found: dict[str, Any] = load_file(path) if plain else torch.load(path, weights_only=True)
    state: dict[str, Any] = found.get("state_dict", found)
    name = rng.choice(list(state))
    value = state.pop(name)
    odd: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x * float("nan"),
        lambda x: x.double() * 1e300,
        lambda x: x.half(),
        lambda x: x.to(torch.int8),
        lambda x: x.bool(),
        lambda x: x.reshape(-1)[:1].reshape(()),
        lambda x: x.reshape(-1),
        lambda x: x.reshape(-1)[:0],
        lambda x: x[None].contiguous(),
        lambda x: x.T.contiguous() if x.ndim == 2 else x.reshape(-1, 1),
        lambda x: torch.cat([x.reshape(-1), x.reshape(-1)]),
        lambda x: torch.zeros(3, 5),
    )
    if rng.random() < 0.8:
        new = name if rng.random() < 0.8 else rng.choice((f"model.{name}", f"{name}.x", "a\nb", ""))
        state[new] = rng.choice(odd)(value)
    place = path.with_name("spoilt")
    save_file(state, place) if plain else torch.save(found, place)
    content = place.read_bytes()
    place.unlink()
    return content


# --- the property --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, dict[str, Load]]]:
    root = tmp_path_factory.mktemp("checkpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(hugging_face.SIZES, "thin", [32, 2, 4, 128])  # as `write_siglip` makes it
        yield root, make(root)


def test_what_is_not_damaged_loads(checkpoints: tuple[Path, dict[str, Load]]) -> None:
    root, forms = checkpoints
    for form, load in forms.items():
        if TRANSFORMERS or form not in ("siglip", "blip"):
            load(root / form)


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_checkpoint_loads_or_is_one_line_that_names_a_file(
    checkpoints: tuple[Path, dict[str, Load]], seed: int
) -> None:
    root, forms = checkpoints
    rng = random.Random(seed)
    form = rng.choice(sorted(forms))
    folder = Path(shutil.copytree(root / form, root / "damaged", dirs_exist_ok=True))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        spoil(folder, rng)
        forms[form](folder)
    except CompoclipError as error:
        said = str(error)
        assert len(said.splitlines()) == 1, said
        assert str(root) in said, said
    finally:
        shutil.rmtree(folder)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < MOST_MEMORY
