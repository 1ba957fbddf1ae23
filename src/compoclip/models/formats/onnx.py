"""Both towers as ONNX, checked against the network they were exported from.

    image.onnx   pixels (batch, 3, height, width) float32 -> image_embeds (batch, dimension)
    text.onnx    ids (batch, context) int64 -> text_embeds (batch, dimension)
    compoclip.json, preprocess.json   identity; image preprocessing, scale of the logits
    vocab.json, merges.txt, ...       CLIPTokenizer, when the tokenizer is CLIP's BPE

Embeddings are not normalised, as in open_clip's encode_image and encode_text.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from compoclip.errors import CompoclipError, optional
from compoclip.files import new_folder, reason
from compoclip.models.checkpoint import Format, LoadedModel, current_identity
from compoclip.models.config import RECORD, ModelIdentity, read_object, record_of, write_json
from compoclip.models.formats.closed_list import TOKENIZER_FILES
from compoclip.models.formats.hf_files import write_clip_tokenizer

TOLERANCE = 1e-4  # of unit-length embeddings: the largest difference that passes
_PROTOBUF_LIMIT = 1_800_000_000  # of 2 GiB; larger towers get a NAME.onnx.data beside


class OnnxFolder(Format):
    """Both towers as ONNX; written only."""

    kind = "ONNX export"
    known_by = f"recorded in {RECORD}"
    order = 60
    markers = ("image.onnx",)
    stored = "text.onnx"
    companions = ("image.onnx.data", "text.onnx.data", "preprocess.json", *TOKENIZER_FILES)
    forms = ("onnx",)

    def load(self, source: str, activation: str | None) -> LoadedModel:
        """Refuse."""
        raise CompoclipError(
            f"{source}: holds an ONNX export, which is only written: name its original model"
        )

    def save(self, loaded: LoadedModel, folder: Path, form: str, dtype: str) -> ModelIdentity:
        """Export both towers, and run them with onnxruntime. Raises CompoclipError when a package
        is missing, a tower cannot be exported, or the outputs differ by more than `TOLERANCE`."""
        for package in ("onnx", "onnxscript", "onnxruntime"):
            runtime = optional(package, "onnx", "--to onnx")
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randn(3, 3, *loaded.preprocess.size, generator=generator)
        ids = loaded.tokenizer(["a cat", "a red square left of a blue circle", "rain"])
        identity, network = current_identity(loaded), loaded.encoder.model
        scale = float(loaded.encoder.logit_scale.detach().exp())
        with new_folder(folder) as temporary:
            differences = {
                tower: _exported(network, tower, argument, example, temporary, runtime)
                for tower, argument, example in (("image", "pixels", pixels), ("text", "ids", ids))
            }
            record = record_of(identity, loaded.provenance)
            write_json(temporary / RECORD, {**record, "onnx_difference": differences})
            preprocess = {**loaded.preprocess.to_config(), "logit_scale": scale}
            write_json(temporary / "preprocess.json", preprocess)
            if loaded.tokenizer.simple is not None:
                write_clip_tokenizer(temporary, loaded.tokenizer)
        return identity

    def facts(self, identity: ModelIdentity, folder: Path) -> dict[str, Any]:
        """Return the largest difference of unit-length embeddings, over batches of 1 and 3."""
        return {"difference": read_object(folder / RECORD)["onnx_difference"]}


class _Tower(nn.Module):
    def __init__(self, network: nn.Module, tower: str) -> None:
        super().__init__()
        self.network, self.method = network, f"encode_{tower}"

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = getattr(self.network, self.method)(inputs)
        return out


def _exported(
    network: nn.Module, name: str, argument: str, example: Tensor, folder: Path, runtime: Any
) -> float:
    """Write a tower and return the largest difference of unit-length embeddings."""
    tower, file = _Tower(network, name).eval(), folder / f"{name}.onnx"
    size = sum(value.numel() * value.element_size() for value in tower.state_dict().values())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's remarks on its own inside
            torch.onnx.export(
                tower,
                (example,),
                str(file),
                dynamo=True,
                verbose=False,
                input_names=[argument],
                output_names=[f"{name}_embeds"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=size > _PROTOBUF_LIMIT,
            )
    except Exception as error:  # the exporter raises its own and torch's internal types
        raise CompoclipError(
            f"the {name} tower cannot be exported to ONNX ({reason(error)})"
        ) from error
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    worst = 0.0
    for batch in (example, example[:1]):
        embedded = torch.from_numpy(session.run(None, {argument: batch.numpy()})[0])
        with torch.no_grad():
            worst = max(worst, float((normalize(embedded) - normalize(tower(batch))).abs().max()))
    if not worst <= TOLERANCE:
        raise CompoclipError(
            f"{file.name}: onnxruntime's embeddings differ by {worst:.1e} from the model's: not "
            "written; report this with the versions of torch, onnx and onnxruntime"
        )
    return worst
