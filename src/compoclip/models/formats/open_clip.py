"""The checkpoint directory: open_clip's own layout plus `compoclip.json`.

    open_clip_config.json        {"model_cfg", "preprocess_cfg", "compoclip": settings}
    open_clip_model.safetensors  the plain open_clip state dict
    compoclip.json               identity (verified on load), provenance
    bpe.txt.gz                   merges of the tokenizer, when it is not CLIP's own
    tokenizer.json, ...          files of a Hugging Face tokenizer (SigLIP)
    README.md                    the model card (see `hub`)

`open_clip.create_model("local-dir:PATH")` reads it without compoclip. The base model `bundled` of
compoclip-world lies in such a directory, too.
"""

from __future__ import annotations

import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from safetensors.torch import save_file

from compoclip import plugins
from compoclip.errors import NEEDS_WORLD, CompoclipError, require
from compoclip.files import file_stamps, new_folder
from compoclip.models.architecture import BLIP
from compoclip.models.checkpoint import (
    Format,
    LoadedModel,
    assemble,
    current_identity,
    override_activation,
    recorded,
)
from compoclip.models.config import (
    MERGES,
    OPEN_CLIP,
    RECORD,
    ModelIdentity,
    read_config,
    read_object,
    record_of,
    section,
    write_json,
)
from compoclip.models.formats.closed_list import TOKENIZER_FILES, check_entries, unread_files
from compoclip.models.formats.hub import write_card
from compoclip.models.names import BUNDLED
from compoclip.models.weights import as_stored, read_state_dict, weights_hash

WEIGHTS = "open_clip_model.safetensors"
WEIGHT_FILES = (WEIGHTS, "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")
"""Names of the weights in a folder; the first file that is there is read."""
_REMEDY = "restore the original file, or remove an entry that open_clip does not read"


class OpenClipFolder(Format):
    """A checkpoint directory of this program or of open_clip."""

    kind = "open_clip checkpoint folder"
    known_by = f"quick_gelu in {OPEN_CLIP}"
    order = 30
    markers = (OPEN_CLIP,)
    stored = WEIGHTS
    downloads = WEIGHT_FILES
    companions = TOKENIZER_FILES
    forms: ClassVar[tuple[str, ...]] = ("open-clip", "merged")

    def load(self, source: str, activation: str | None) -> LoadedModel:
        """Return the model, verified against its `compoclip.json`, if it has one."""
        path = Path(source)
        data = read_object(path / OPEN_CLIP)
        check_entries(data, OPEN_CLIP, path / OPEN_CLIP, _REMEDY)
        images = section(data, "preprocess_cfg", path / OPEN_CLIP)
        check_entries(images, "preprocess_cfg", path / OPEN_CLIP, _REMEDY, "preprocess_cfg.")
        config = replace(
            read_config(path / OPEN_CLIP), assumed=tuple(unread_files(path, "open_clip"))
        )
        paths = [path / name for name in WEIGHT_FILES if (path / name).is_file()]
        require(paths, path, f"has no weights; expected {WEIGHTS}")
        read = [path / OPEN_CLIP, path / RECORD, paths[0], *filter(None, [config.merges])]
        stamps = file_stamps(read)
        loaded = assemble(config, source, state=read_state_dict(paths[0]), path=path, assign=True)
        loaded = override_activation(recorded(loaded, path, {}), activation)
        return replace(loaded, files=stamps)

    def save(self, loaded: LoadedModel, folder: Path, form: str, dtype: str) -> ModelIdentity:
        """Write the folder with its card."""
        state = as_stored(loaded.encoder.model.state_dict(), dtype, loaded.name)
        identity = replace(current_identity(loaded), weights=weights_hash(state))
        model_cfg = deepcopy(dict(loaded.config.model_cfg))
        merges = loaded.config.merges
        if merges is not None:
            # open_clip reads a relative name from the working directory.
            place = (folder.absolute() / MERGES).as_posix()
            model_cfg["text_cfg"]["tokenizer_kwargs"]["bpe_path"] = place
        config = replace(
            loaded.config, model_cfg=model_cfg, preprocess_cfg=loaded.preprocess.to_config()
        )
        with new_folder(folder) as temporary:
            save_file(state, temporary / WEIGHTS, metadata={"format": "pt"})
            write_json(temporary / OPEN_CLIP, config.to_json())
            write_json(temporary / RECORD, record_of(identity, loaded.provenance))
            if merges is not None:
                shutil.copyfile(merges, temporary / MERGES)
            loaded.tokenizer.write_files(temporary)
            write_card(temporary)
        return identity

    def snippet(self, folder: Path) -> tuple[str, str]:
        """open_clip's code; it has no BLIP."""
        if BLIP in read_config(folder / OPEN_CLIP).model_cfg:
            return "", ""
        merges = f', bpe_path="FOLDER/{MERGES}"' if (folder / MERGES).is_file() else ""
        return "open_clip", (
            "import open_clip\n\n"
            'model, _, preprocess = open_clip.create_model_and_transforms("local-dir:FOLDER")\n'
            f'tokenizer = open_clip.get_tokenizer("local-dir:FOLDER"{merges})\n'
            "model.eval()"
        )


class BundledModel(OpenClipFolder):
    """`bundled`: the small base model of compoclip-world (entry point `compoclip.checkpoints`)."""

    kind = "the base model of compoclip-world"
    known_by = f"recorded in {RECORD}"
    order = 1
    forms = ()

    def sniff(self, source: str) -> bool:
        """Return whether it is that name."""
        return source == BUNDLED

    def load(self, source: str, activation: str | None) -> LoadedModel:
        """Load the folder that the entry point names."""
        point = plugins.installed("checkpoints").get(source)
        if point is None:
            raise CompoclipError(f"the base model '{BUNDLED}' {NEEDS_WORLD}; or name another model")
        return super().load(str(plugins.imported(point, "checkpoint")), activation)
