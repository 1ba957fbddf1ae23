"""Whatever a checkpoint's files hold, loading ends soon, in little memory, with a model or with one
line that names the file."""

from __future__ import annotations

import gzip
import io
import json
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
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

from build.spoil import in_bytes, spoil
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

    folders = ("open-clip", "pickled", "hf", "sharded", "split", "siglip", "blip", "adapter")
    return {
        **dict.fromkeys(folders, whole),
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

ODD: tuple[Callable[[Tensor], Tensor], ...] = (
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


def damage(folder: Path, data: st.DataObject) -> None:
    """Damage one file of a checkpoint, or two."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md")
    for path in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2)):
        match data.draw(st.sampled_from(("remove", "exchange", *["spoil"] * 14))):
            case "remove":
                path.unlink(missing_ok=True)
            case "exchange":
                other = data.draw(st.sampled_from(files))
                path.write_bytes(other.read_bytes() if other.is_file() else b"")
            case _ if path.is_file():
                path.write_bytes(damaged(path, data))


def damaged(path: Path, data: st.DataObject) -> bytes:
    """Return the content of a file with something in it damaged, its checksums mostly right."""
    content = path.read_bytes()
    with suppress(Exception):  # of a file that is damaged already
        way = data.draw(st.sampled_from(("bytes", "inside", "inside", "tensor")))
        if path.suffix == ".gz" and way != "bytes":
            return gzip.compress(in_bytes(data, gzip.decompress(content)))
        if path.suffix in (".pt", ".bin") and way == "inside":
            return with_pickle(content, data)
        if path.suffix in (".pt", ".bin", ".safetensors") and way != "bytes":
            return with_tensor(path, data)
    return spoil(data, content, path.suffix)


def with_pickle(content: bytes, data: st.DataObject) -> bytes:
    """Return a PyTorch file whose structure is damaged and whose checksums are right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            member = old.read(name)
            new.writestr(name, in_bytes(data, member) if name.endswith("data.pkl") else member)
    return out.getvalue()


def with_tensor(path: Path, data: st.DataObject) -> bytes:
    """Return the file with another tensor, or none, in place of one."""
    plain = path.suffix == ".safetensors"
    whole: dict[str, Any] = load_file(path) if plain else torch.load(path, weights_only=True)
    state: dict[str, Any] = whole.get("state_dict", whole)
    name = data.draw(st.sampled_from(sorted(state)))
    value = state.pop(name)
    names = (name, name, name, f"model.{name}", f"{name}.x", "a\nb", "")
    if data.draw(st.integers(0, 4)):
        state[data.draw(st.sampled_from(names))] = data.draw(st.sampled_from(ODD))(value)
    place = path.with_name("spoilt")
    save_file(state, place) if plain else torch.save(whole, place)
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
@given(st.data())
def test_a_damaged_checkpoint_loads_or_is_one_line_that_names_a_file(
    checkpoints: tuple[Path, dict[str, Load]], data: st.DataObject
) -> None:
    root, forms = checkpoints
    form = data.draw(st.sampled_from(sorted(forms)))
    folder = Path(shutil.copytree(root / form, root / "damaged", dirs_exist_ok=True))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        damage(folder, data)
        forms[form](folder)
    except CompoclipError as error:
        said = str(error)
        assert len(said.splitlines()) == 1, said
        assert str(root) in said, said
    finally:
        shutil.rmtree(folder)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < MOST_MEMORY
