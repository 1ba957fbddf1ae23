"""Folders of Hugging Face's transformers, read and written: CLIP, SigLIP, BLIP.

    config.json               the kind of model ("model_type") and its sizes
    model.safetensors         its parameters, in one file or several
    preprocessor_config.json  the image processor
    vocab.json, merges.txt, tokenizer.json, ...   the tokenizer
    compoclip.json            identity and provenance (not in folders of others)
    bpe.txt.gz                merges in open_clip's form, when they are not CLIP's own

`hugging_face.yaml` holds the names of parameters and sizes in both words. Neither reading nor
writing needs transformers installed, but for BLIP and for tokenizers other than CLIP's.
"""

from __future__ import annotations

import math
import re
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from safetensors.torch import save_file
from timm.models import is_model
from torch import Tensor

from compoclip.config import package_yaml
from compoclip.errors import CompoclipError, typed_repr
from compoclip.files import new_folder
from compoclip.models.architecture import (
    BLIP,
    BLIP_TEMPERATURE,
    BLIP_VOCABULARY,
    TANH,
    activation_of,
    architecture_name,
    with_activation,
)
from compoclip.models.checkpoint import (
    Format,
    LoadedModel,
    assemble,
    current_identity,
    override_activation,
    recorded,
)
from compoclip.models.config import (
    EPSILON,
    MERGES,
    RECORD,
    ModelConfig,
    ModelIdentity,
    part_of,
    read_object,
    record_of,
    section,
    sound,
    write_json,
)
from compoclip.models.formats.closed_list import TOKENIZER_FILES, check_entries, unread_files
from compoclip.models.formats.hf_files import (
    CONFIG,
    IMAGES,
    INDEX,
    MODALITIES,
    WEIGHTS,
    ParameterNames,
    clip_sizes,
    cut_context,
    longest_text,
    model_type_of,
    preprocess_of,
    read_tensors,
    refuse,
    require_pipeline,
    shards_of,
    tokenizer_of,
    write_clip_tokenizer,
    write_image_processor,
    write_modalities,
)
from compoclip.models.tokenizer import build_tokenizer
from compoclip.models.weights import as_stored, weights_hash
from compoclip.typed import require_kind

_TABLES = package_yaml(Path(__file__).with_suffix(".yaml"))
_SIZES = _TABLES["sizes"]
_SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
SIZES: dict[str, list[int]] = _TABLES["siglip"]["towers"]
"""timm's words for SigLIP's image towers -> width, layers, heads and MLP width."""
OTHERS = "hf:FOLDER measures the model by transformers"
Content = tuple[Mapping[str, Any], Mapping[str, Tensor], list[str]]
"""`config.json`, parameters, and facts that a folder does not state."""


class HuggingFaceFolder(Format):
    """A folder of transformers; a subclass is a family of models.

    Attributes:
        model_type: What `config.json` calls the family; its table in `hugging_face.yaml`.
        family: What people call it.
        clean: open_clip's name for the cleaning of texts by a tokenizer in the folder; "" for
            CLIP's tokenizer.
        nested: What open_clip may put before the names of the text tower.
        records: Whether a written folder has a record of its identity.
    """

    known_by = f"hidden_act in {CONFIG}"
    stored = WEIGHTS
    downloads = ("model*.safetensors", "pytorch_model*.bin")  # safetensors if there are any
    companions = (IMAGES, MODALITIES, *TOKENIZER_FILES)
    model_type: ClassVar[str]
    family: ClassVar[str]
    clean: ClassVar[str] = ""
    nested: ClassVar[str] = ""
    records: ClassVar[bool] = True

    def __init__(self) -> None:
        self.table: dict[str, Any] = _TABLES[self.model_type]
        self.names = ParameterNames(self.table["model"], _rows(self.model_type))

    def sniff(self, source: str) -> bool:
        """Return whether `config.json` names this family."""
        return model_type_of(Path(source)) == self.model_type

    @abstractmethod
    def read_config(self, data: Mapping[str, Any], source: str) -> dict[str, Any]:
        """Return the open_clip configuration of a `config.json`, without the tokenizer.

        Raises CompoclipError naming `source` for values that are malformed or have no such form.
        """

    @abstractmethod
    def write_config(
        self, config: Mapping[str, Any], vocabulary: int, tower: str = ""
    ) -> dict[str, Any]:
        """Return the `config.json` that computes what an open_clip configuration does.

        vocabulary: one more than the last token id in use. tower: "vision" or "text" for one tower
        alone. Raises CompoclipError when transformers' model cannot express it.
        """

    def content(self, path: Path) -> Content:
        """Read the configuration and the parameters of a folder."""
        return read_object(path / CONFIG), read_tensors(path), []

    def load(self, source: str, activation: str | None) -> LoadedModel:
        """Load the folder as an open_clip model. What it does not say (preprocessing, CLIP's
        vocabulary) is the family's own and noted in the provenance."""
        path = Path(source)
        with sound(path):
            data, tensors, assumed = self.content(path)
            with sound(path / CONFIG):
                config = self.read_config(data, str(path / CONFIG))
            tokenizer, unsaid = tokenizer_of(path, self.clean)
            config["text_cfg"] |= tokenizer
            require_pipeline(path)
            if not self.clean:
                end = build_tokenizer(tokenizer, path).vocab_size - 1
                stated = section(data, "text_config", path).get("eos_token_id", end)
                if stated not in (2, end):  # 2: that of early releases
                    entry = f"{path / CONFIG}: text_config.eos_token_id is {typed_repr(stated)}"
                    raise CompoclipError(f"{entry}, and texts end in {end}; {OTHERS}")
            state = self.names.read(tensors, str(path))
            cut_context(config["text_cfg"], state, longest_text(path))
            side = int(config["vision_cfg"]["image_size"])
            preprocess = preprocess_of(path, self.table["processor"], side)
            assumed = [*assumed, *unsaid, *unread_files(path, "transformers")]
            if preprocess is None:
                preprocess = self.table.get("preprocess", {})
                assumed.append(f"images are prepared as for {self.family}, no file says how")
            model = ModelConfig(config, preprocess, folder=path, assumed=tuple(assumed))
            loaded = assemble(model, source, state=state, path=path, assign=True)
        facts = {"activation": f"{loaded.identity.activation}, by {CONFIG}"}
        return override_activation(recorded(loaded, path, facts), activation)

    def save(self, loaded: LoadedModel, folder: Path, form: str, dtype: str) -> ModelIdentity:
        """Write the folder of the model or of one tower."""
        tower = form.removeprefix("hf").removeprefix("-")
        model_cfg = {k: v for k, v in loaded.config.model_cfg.items() if k != "custom_text"}
        config = self.write_config(loaded.config.model_cfg, loaded.tokenizer.vocab_size, tower)
        model = config["architectures"][0]
        if not self.clean and tower != "vision" and loaded.tokenizer.simple is None:
            self._refuse("a tokenizer that is not CLIP's BPE", model)
        if dtype == "float16":
            config["torch_dtype"] = "float16"
        network = loaded.encoder.model.state_dict()
        bare = {name.removeprefix(self.nested): value for name, value in network.items()}
        plain = as_stored(bare, dtype, loaded.name)
        part = {"vision": "image", "text": "text"}.get(tower)
        state = self.names.write({k: v for k, v in plain.items() if part in (None, part_of(k))})
        if tower == "vision":  # a CLIPVisionModel ends before the projection
            state = {key: value for key, value in state.items() if key.startswith("vision_model.")}
        with new_folder(folder) as temporary:
            if tower != "text":
                write_image_processor(temporary, loaded.preprocess, self.table["processor"])
            save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
            write_json(temporary / CONFIG, config)
            if self.clean:
                loaded.tokenizer.write_files(temporary)
            elif tower != "vision":
                write_clip_tokenizer(temporary, loaded.tokenizer)
            if self.records and not tower:  # as the folder will be read
                write_modalities(temporary)
                model_cfg = self.read_config(config, str(folder))
                if self.clean:
                    model_cfg["text_cfg"] |= tokenizer_of(temporary, self.clean)[0]
            identity = replace(
                current_identity(loaded),
                architecture=architecture_name(with_activation(model_cfg, "gelu")),
                weights=weights_hash(plain),
            )
            if self.records and not tower:
                write_json(temporary / RECORD, record_of(identity, loaded.provenance))
                if loaded.config.merges is not None:
                    shutil.copyfile(loaded.config.merges, temporary / MERGES)
        return identity

    def hub_files(self, folder: Path) -> tuple[list[str], tuple[str, ...]]:
        """Return configuration and weights, in one file or several."""
        sharded = (folder / INDEX).is_file()
        weights = [INDEX, *shards_of(folder / INDEX)] if sharded else [WEIGHTS]
        return [CONFIG, *weights], self.companions

    def snippet(self, folder: Path) -> tuple[str, str]:
        """Return transformers' code, where its model is the whole of ours."""
        code = self.table.get("snippet", "")
        return ("transformers" if code else ""), code.strip()

    def _sections(self, data: Mapping[str, Any], source: str) -> list[dict[str, Any]]:
        """Return their configuration of the image tower and of the text tower, complete."""
        check_entries(data, self.model_type, source, OTHERS)
        sections = []
        for part in ("vision", "text"):
            usual, stated = self.table["defaults"][part], dict[str, Any]()
            # Early releases kept the true values in *_config_dict, as transformers still honours.
            for key in (f"{part}_config", f"{part}_config_dict"):
                listed = section(data, key, source)
                check_entries(listed, f"{self.model_type} {part}_config", source, OTHERS, f"{key}.")
                for name in listed.keys() & usual.keys():
                    place = f"{source}: {key}.{name}"
                    require_kind(place, listed[name], type(usual[name]), OTHERS)
                stated |= listed
            sections.append({**usual, **stated})
        return sections

    def _tower(self, part: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sizes of a tower in their words."""
        ours = config[f"{part}_cfg"]
        usual = {**self.table["defaults"][part], "patch_size": 16}  # open_clip's
        sizes = {theirs: ours.get(key, usual[theirs]) for key, theirs in _SIZES[part].items()}
        for key in ("image_size", "patch_size"):
            size = sizes.get(key)
            if isinstance(size, list | tuple) and len(set(size)) > 1:
                self._refuse(f"an oblong {key} {size}")
            sizes |= {key: max(size)} if isinstance(size, list | tuple) else {}
        width = int(sizes["hidden_size"])
        hidden = int(width * ours.get("mlp_ratio", 4.0))
        return {"intermediate_size": hidden, **{key: int(value) for key, value in sizes.items()}}

    def _require_known(self, part: str, config: Mapping[str, Any], model: str = "") -> None:
        """Raise CompoclipError for a key or a value that their model cannot express."""
        fixed = self.table.get("fixed", {}).get(part, {})
        names = {*self.table["known"][part], *fixed}
        odd = [key for key, value in config.items() if key not in names and value]
        odd += [key for key, value in fixed.items() if config.get(key) != value]
        if odd:
            self._refuse(f"'{odd[0]}': {config.get(odd[0])}", model)

    def _refuse(self, content: str, model: str = "") -> NoReturn:
        refuse(model or self.table["model"], content)


def _rows(table: str) -> list[list[str]]:
    """Return the rows of parameters of a table, with those that it takes over from others."""
    rows = []
    for row in _TABLES[table]["parameters"]:
        others = [["", ""]] if isinstance(row, list) else _rows(row["extends"])
        theirs, ours, *how = row if isinstance(row, list) else (row["theirs"], row["ours"])
        rows += [[theirs + a, ours + b, *how, *more] for a, b, *more in others]
    return rows


def _ours(part: str, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a tower in open_clip's words."""
    return {key: int(theirs[name]) for key, name in _SIZES[part].items()}


class HFClip(HuggingFaceFolder):
    """transformers' CLIPModel; either tower alone is written, too."""

    order = 49  # the one for folders of transformers of any other kind, which it refuses
    model_type = "clip"
    kind = "Hugging Face CLIPModel folder"
    family = "CLIP"
    nested = "text."
    forms: ClassVar[tuple[str, ...]] = ("hf", "hf-vision", "hf-text")

    def sniff(self, source: str) -> bool:
        """Return whether it is a folder of transformers that no format before knows."""
        return model_type_of(Path(source)) is not None

    def read_config(self, data: Mapping[str, Any], source: str) -> dict[str, Any]:
        """See `HuggingFaceFolder.read_config`."""
        kind = data.get("model_type", "unknown")
        *kinds, last = (repr(name) for name, table in _TABLES.items() if "model" in table)
        if kind != "clip":
            raise CompoclipError(
                f"{source}: model_type '{kind}' is not {', '.join(kinds)} or {last}, the kinds "
                f"that are read; {OTHERS}, and others for training come from open_clip "
                "(ARCHITECTURE:TAG)"
            )
        vision, text = self._sections(data, source)
        acts = {str(text["hidden_act"]), str(vision["hidden_act"])}
        if len(acts) != 1 or not acts <= {"quick_gelu", "gelu"}:
            raise CompoclipError(
                f"{source}: hidden_act {' and '.join(sorted(acts))}: open_clip has quick_gelu or "
                "gelu, the same in both towers"
            )
        config: dict[str, Any] = {"quick_gelu": True} if "quick_gelu" in acts else {}
        config["embed_dim"] = int(data.get("projection_dim", 512))
        for part, theirs in (("vision", vision), ("text", text)):
            ours = config[f"{part}_cfg"] = _ours(part, theirs)
            width, hidden = ours["width"], int(theirs["intermediate_size"])
            heads = int(theirs["num_attention_heads"])
            if width % heads != 0:
                raise CompoclipError(
                    f"{source}: {part}_config.num_attention_heads {heads} does not divide "
                    f"hidden_size {width}"
                )
            if hidden != 4 * width:  # int(width * ratio) has to be exactly `hidden`
                exact = int(width * (hidden / width)) == hidden
                ours["mlp_ratio"] = (hidden if exact else hidden + 0.5) / width
            if float(theirs["layer_norm_eps"]) != EPSILON:
                ours["norm_kwargs"] = {"eps": float(theirs["layer_norm_eps"])}
        head = config["vision_cfg"]["width"] // int(vision["num_attention_heads"])
        if head != 64:
            config["vision_cfg"]["head_width"] = head
        return config

    def write_config(
        self, config: Mapping[str, Any], vocabulary: int, tower: str = ""
    ) -> dict[str, Any]:
        """See `HuggingFaceFolder.write_config`."""
        alone = {"vision": "CLIPVisionModel", "text": "CLIPTextModelWithProjection"}
        if tower:
            named = {"architectures": [alone[tower]]}
            return named | self._part_config(tower, config, vocabulary, alone[tower])
        self._require_known("top", config)
        return {
            **self.table["written"],
            "projection_dim": int(config["embed_dim"]),
            "text_config": self._part_config("text", config, vocabulary),
            "vision_config": self._part_config("vision", config, vocabulary),
        }

    def _part_config(
        self, part: str, config: Mapping[str, Any], vocabulary: int, model: str = ""
    ) -> dict[str, Any]:
        ours = dict(config[f"{part}_cfg"])
        if "timm_model_name" in ours:
            self._refuse(f"a timm image tower ({ours['timm_model_name']})", model)
        if not isinstance(ours.get("layers", 12), int):
            self._refuse("a ResNet image tower", model)
        self._require_known(part, ours, model)
        norm = dict(ours.get("norm_kwargs") or {})
        epsilon = float(norm.pop("eps", EPSILON))
        if norm:
            self._refuse(f"norm_kwargs {norm}", model)
        sizes = self._tower(part, config)
        if part == "vision":
            heads = sizes["hidden_size"] // int(ours.get("head_width", 64))
            sizes |= {"num_attention_heads": heads, "num_channels": 3}
        else:
            end = vocabulary - 1
            sizes |= {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end}
        return {
            "model_type": f"clip_{part}_model",
            "projection_dim": int(config["embed_dim"]),
            "hidden_act": activation_of(config),
            "layer_norm_eps": epsilon,
            **sizes,
        }


class HFSiglip(HuggingFaceFolder):
    """transformers' SiglipModel, which the fixed-size SigLIP 2 models have too.

    A ViT without class token that pools by attention, and a text tower that sees both ways at full
    length and pools at its last position. open_clip builds the same from a timm trunk and a text
    transformer without causal mask.
    """

    order = 40
    model_type = "siglip"
    kind = "Hugging Face SiglipModel folder"
    family = "SigLIP"
    clean = "canonicalize"
    forms = ("hf",)
    _trunk = re.compile(rf"vit_(\w+?)_patch(\d+)_siglip_(\d+)({TANH})?")
    _acts: ClassVar = {"gelu": {}, "gelu_pytorch_tanh": {"act_kwargs": {"approximate": "tanh"}}}

    def fits(self, loaded: LoadedModel) -> bool:
        """Return whether the image tower is one of SigLIP's."""
        name = loaded.config.model_cfg["vision_cfg"].get("timm_model_name")
        return self._trunk.fullmatch(str(name)) is not None

    def read_config(self, data: Mapping[str, Any], source: str) -> dict[str, Any]:
        """See `HuggingFaceFolder.read_config`."""
        vision, text = self._sections(data, source)
        for part in (text, vision):
            act, epsilon = part["hidden_act"], part["layer_norm_eps"]
            if act not in self._acts or epsilon != 1e-6:
                raise CompoclipError(
                    f"{source}: hidden_act {act}, layer_norm_eps {epsilon}: SigLIP has "
                    f"{' or '.join(self._acts)} and 1e-06"
                )
        shape = [int(vision[key]) for key in _SHAPE]
        size = next((name for name, sizes in SIZES.items() if list(sizes) == shape), None)
        trunk = f"vit_{size}_patch{vision['patch_size']}_siglip_{vision['image_size']}"
        # In timm giantopt has the approximate activation, all others the exact one.
        if vision["hidden_act"] == "gelu_pytorch_tanh" and size != "giantopt":
            trunk += TANH
        stated = ", ".join(f"{key} {vision[key]}" for key in (*_SHAPE, "patch_size", "image_size"))
        if size is None or not is_model(trunk):
            raise CompoclipError(
                f"{source}: timm has no SigLIP tower with the vision_config of {stated}: only "
                "published sizes are read"
            )
        sizes, hidden = _ours("text", text), int(text["intermediate_size"])
        if hidden != 4 * sizes["width"]:
            sizes["mlp_ratio"] = (hidden + 0.5) / sizes["width"]
        length = text.get("projection_size") or sizes["width"]
        if length != shape[0]:
            raise CompoclipError(
                f"{source}: text_config.projection_size is {length} and vision_config.hidden_size "
                f"{shape[0]}: the towers must end in the same length"
            )
        image = {"image_size": int(vision["image_size"]), "timm_model_name": trunk}
        image["timm_model_pretrained"] = False
        fixed = self.table["fixed"]
        return {
            "embed_dim": shape[0],
            "init_logit_bias": -10,
            "custom_text": True,
            "vision_cfg": {**image, **fixed["vision"]},
            "text_cfg": {**sizes, **fixed["text"], **self._acts[text["hidden_act"]]},
        }

    def write_config(
        self, config: Mapping[str, Any], vocabulary: int = 0, tower: str = ""
    ) -> dict[str, Any]:
        """See `HuggingFaceFolder.write_config`."""
        vision, text, dim = config["vision_cfg"], config["text_cfg"], int(config["embed_dim"])
        for part, ours in (("top", config), ("vision", vision), ("text", text)):
            self._require_known(part, ours)
        cleaning = (text.get("tokenizer_kwargs") or {}).get("clean")
        arguments = {"act_kwargs": text["act_kwargs"]} if text.get("act_kwargs") else {}
        act = next((name for name, value in self._acts.items() if value == arguments), None)
        trunk = self._trunk.fullmatch(vision["timm_model_name"])
        shape = SIZES.get(trunk[1]) if trunk else None
        if not text.get("hf_tokenizer_name") or cleaning != self.clean:
            self._refuse(f"a tokenizer that is not SigLIP's own (texts cleaned by '{cleaning}')")
        if config.get("init_logit_bias") is None:
            self._refuse("a model without a bias of its logits")
        if act is None:
            self._refuse(f"act_kwargs {text['act_kwargs']}")
        if not trunk or not shape or int(trunk[3]) != vision.get("image_size", int(trunk[3])):
            self._refuse(f"the image tower '{vision['timm_model_name']}'")
        if shape[0] != dim:
            self._refuse(f"features of length {dim} from an image tower of width {shape[0]}")
        approximate = trunk[4] or trunk[1] == "giantopt"
        image = {
            **dict(zip(_SHAPE, shape)),
            "image_size": int(trunk[3]),
            "patch_size": int(trunk[2]),
            "hidden_act": "gelu_pytorch_tanh" if approximate else "gelu",
        }
        sizes = {"projection_size": dim, "hidden_act": act, **self._tower("text", config)}
        written = self.table["written"]
        return {
            **written,
            "text_config": {**written["text_config"], **sizes},
            "vision_config": {**written["vision_config"], **image},
        }

    def save(self, loaded: LoadedModel, folder: Path, form: str, dtype: str) -> ModelIdentity:
        """Write a SiglipModel folder with the model's own tokenizer."""
        if loaded.preprocess.resize_mode != "squash":
            self._refuse(f"images resized by '{loaded.preprocess.resize_mode}'")
        return super().save(loaded, folder, form, dtype)


class HFBlip(HuggingFaceFolder):
    """transformers' BlipForImageTextRetrieval (Li et al., ICML 2022), see `architecture.Blip`."""

    order = 41
    model_type = "blip"
    kind = "Hugging Face BlipForImageTextRetrieval folder"
    family = "BLIP"
    clean = "whitespace"
    records = False  # the folder has no place for the temperature, which ranks alike
    forms = ("hf",)
    _CONTEXT = 35  # tokens of a text, as BLIP was trained and is evaluated on retrieval

    def fits(self, loaded: LoadedModel) -> bool:
        """Return whether it is a BLIP."""
        return BLIP in loaded.config.model_cfg

    def content(self, path: Path) -> Content:
        """See `HuggingFaceFolder.content`; a folder has no temperature as a rule."""
        data, state, assumed = super().content(path)
        if not {"itm_head.weight", "vision_proj.weight"} <= state.keys():
            raise CompoclipError(
                f"{path}: is no BlipForImageTextRetrieval (it lacks itm_head or vision_proj); "
                "BLIPs for captions or questions have no towers to compare"
            )
        if "logit_scale" not in state:
            assumed = ["temperature: BLIP's first one, the folder has none"]
            state = {"logit_scale": torch.tensor(-math.log(BLIP_TEMPERATURE)), **state}
        return data, state, assumed

    def read_config(self, data: Mapping[str, Any], source: str) -> dict[str, Any]:
        """See `HuggingFaceFolder.read_config`."""
        check_entries(data, self.model_type, source, OTHERS)
        text, vision = (section(data, key, source) for key in ("text_config", "vision_config"))
        keep = {"image_text_hidden_size", "text_config", "vision_config"}
        context = min(self._CONTEXT, int(text.get("max_position_embeddings", 512)))
        vocabulary = int(text.get("vocab_size", BLIP_VOCABULARY))
        return {
            "embed_dim": int(data.get("image_text_hidden_size", 256)),
            "vision_cfg": {"image_size": int(vision.get("image_size", 384))},
            "text_cfg": {"context_length": context, "vocab_size": vocabulary},
            BLIP: {key: value for key, value in data.items() if key in keep},
        }

    def write_config(
        self, config: Mapping[str, Any], vocabulary: int, tower: str = ""
    ) -> dict[str, Any]:
        """See `HuggingFaceFolder.write_config`."""
        return {**self.table["written"], **config[BLIP]}


class SplitClip(HFClip):
    """The two towers of a CLIP in folders of their own, as TripletCLIP publishes them.

        vision-encoder/config.json, model.safetensors    CLIPVisionModelWithProjection in a wrapper
        text-encoder/config.json, model.safetensors      CLIPTextModelWithProjection in a wrapper

    The wrappers' code (`utils.py`) is not run. Tensors give the sizes, the configuration the
    number of heads (else width / 64) and the activation.
    """

    order = 42
    kind = "Hugging Face two-tower CLIP folder"
    downloads = ("*-encoder/*.safetensors", "*-encoder/pytorch_model*.bin")
    forms = ()
    folders: ClassVar = {"vision": "vision-encoder", "text": "text-encoder"}

    def sniff(self, source: str) -> bool:
        """Return whether both folders have a configuration."""
        return all((Path(source) / name / CONFIG).is_file() for name in self.folders.values())

    def content(self, path: Path) -> Content:
        """See `HuggingFaceFolder.content`. Raises CompoclipError when a folder holds something else
        than a CLIP tower, or no configuration says the activation."""
        state: dict[str, Tensor] = {"logit_scale": torch.tensor(math.log(100))}  # training's last
        stated: dict[str, dict[str, Any]] = {}
        for part, name in self.folders.items():
            tensors = read_tensors(path / name)
            state |= {key.removeprefix("model."): value for key, value in tensors.items()}
            data = read_object(path / name / CONFIG)
            for key in ("vision_config", "text_config"):  # at the top, or below the tower's name
                nested = section(data, key, path / name / CONFIG)
                data = {k: v for k, v in data.items() if k != key} | nested
            check_entries(data, f"clip {part}_config", path / name / CONFIG, OTHERS)
            keys = ("hidden_act", "layer_norm_eps", "num_attention_heads", "eos_token_id")
            stated[part] = {key: data[key] for key in keys if key in data}
        acts = {str(facts["hidden_act"]) for facts in stated.values() if "hidden_act" in facts}
        if len(acts) != 1:
            raise CompoclipError(
                f"{path}: the config.json in {' and '.join(self.folders.values())} do not agree on "
                'hidden_act, or have none; add "hidden_act": "quick_gelu" or "gelu", as the '
                "weights were trained"
            )
        try:
            data = {f"{part}_config": clip_sizes(state, part) | stated[part] for part in stated}
            data |= {"projection_dim": len(state["text_projection.weight"])}
            _ = state["visual_projection.weight"]
        except KeyError as error:
            raise CompoclipError(
                f"{path}: the towers lack {error}: it is not transformers' CLIP"
            ) from error
        for part in stated:
            data[f"{part}_config"]["hidden_act"] = min(acts)
        unsaid = "temperature: 1/100, the folder has none"
        return {"model_type": "clip", **data}, state, [unsaid]
