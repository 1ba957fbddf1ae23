"""`compoclip convert SRC DST --to FORM`: open_clip, Hugging Face, LoRA, PEFT, ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from compoclip import console
from compoclip.cli.options import parse
from compoclip.places import require_writable


@dataclass(frozen=True)
class ConvertOptions:
    """Write a model in another form. Outputs stay the same; numbers are moved, not changed.

    Forms:
        open-clip  checkpoint folder that open_clip and every verb here read
        hf         folder of transformers' CLIPModel, with tokenizer and image processor
        hf-vision  folder of transformers' CLIPVisionModel: the image tower alone
        merged     an adapter merged into its base, as a checkpoint folder
        lora       an adapter folder, from a PEFT folder or from published files with LoRA inside
        peft       a PEFT folder for the CLIPModel of the base
        onnx       both towers, checked with onnxruntime

    Examples:
        compoclip convert runs/fsc/model fsc-hf --to hf
        compoclip convert negclip.pth negclip --to open-clip --base ViT-B-32-quickgelu:openai
        compoclip convert ViT-B-32-quickgelu@dac.pt dac --to merged

    Args:
        source: The model, written as for evaluate; with --base also a weights file alone or a PEFT
            folder.
        destination: Folder to write.
        to: The form to write.
        base: What the weights were trained from. It names the architecture, and the activation if
            the weights are near to it.
        activation: Your word on the activation of weights that do not record it.
        dtype: float16 halves the size of open-clip, merged, hf and hf-vision.
        push_to_hub: Put DST on the Hugging Face hub too, as `compoclip push DST REPO` does.
        json: Print what was written as JSON.
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    destination: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DST")]
    to: Literal["open-clip", "hf", "hf-vision", "lora", "peft", "merged", "onnx"]
    base: str | None = None
    activation: Literal["gelu", "quick_gelu"] | None = None
    dtype: Literal["float32", "float16"] = "float32"
    push_to_hub: Annotated[str | None, tyro.conf.arg(metavar="REPO")] = None
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse, convert, say what was written."""
    options = parse(ConvertOptions, "convert", argv)
    require_writable(options.destination)
    from compoclip.models import hub
    from compoclip.models.convert import convert

    if options.push_to_hub:
        hub.require_pushable(options.push_to_hub)
    made = convert(
        options.source,
        options.destination,
        options.to,
        base=options.base,
        activation=options.activation,
        dtype=options.dtype,
    )
    if options.json:
        console.emit_json({"source": options.source, "written": str(options.destination), **made})
    else:
        facts = ", ".join(f"{key} {value}" for key, value in made.items() if key != "form")
        print(f"{options.source} -> {options.destination} ({made['form']}): {facts}")
    if options.push_to_hub:
        pushed = hub.publish(options.destination, options.push_to_hub)
        console.note(f"{options.destination} -> {pushed.url}")
    return 0
