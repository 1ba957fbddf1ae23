"""`compoclip inspect CKPT`: what a checkpoint is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from compoclip import console
from compoclip.cli.options import Outcome, Printing
from compoclip.config import HubName, InputPlace, ModelFolder, ModelName, OutputFolder, Shown
from compoclip.errors import CompoclipError
from compoclip.printed import Table
from compoclip.typed import Count, Within


@dataclass(frozen=True)
class InspectOptions(Printing):
    """Show a checkpoint's architecture, activation and its source, sizes and origin.

    Weights files do not record their activation, and the wrong one loses accuracy. --base measures
    the distance to a base: fine-tuned weights are close to it and have its activation.

    Examples:
        compoclip inspect runs/fsc/model
        compoclip inspect negclip.pth --base ViT-B-32-quickgelu:openai

    Args:
        checkpoint: Folder, weights file, ARCHITECTURE@FILE, ARCHITECTURE:TAG, hf-hub:ID or
            "bundled".
        base: A model to compare the weights with.
        activation: The activation of weights that do not record it.
    """

    checkpoint: Annotated[ModelName, Shown("CKPT", positional=True)]
    base: ModelName | None = None
    activation: Literal["gelu", "quick_gelu"] | None = None


def inspect_main(options: InspectOptions) -> Outcome:
    """Print what a checkpoint is, a line per fact."""
    from compoclip.models.conversion import inspect_model

    record = inspect_model(options.checkpoint, options.base, options.activation)
    counts = record["parameters"]
    parts = [f"{name} {number:,}" for name, number in counts.items() if number and name != "total"]
    facts: dict[str, object] = {
        "checkpoint": record["source"],
        "kind": record["kind"],
        "architecture": record["architecture"],
        "activation": f"{record['activation']} ({record['activation_by']})",
        "context": record["context"],
        "image size": record["image_size"],
        "vocabulary": record["vocabulary"],
        "adapter": record["adapter"] or "none",
        "parameters": f"{counts['total']:,} ({', '.join(parts)})",
        "stored as": ", ".join(f"{kind} x {count}" for kind, count in record["dtypes"].items()),
    }
    if record["identity"]:
        facts["weights"] = record["identity"]["weights"]
        facts["trained from"] = record["identity"]["base"] or "unknown"
    if base := record["base"]:
        changed = console.counted(base["changed"], "changed tensor")
        distance = f"{base['verdict']}: {base['distance']}, {changed}"
        facts["base"] = f"{base['name']} ({base['activation']}): {distance}"
    lines = [(name, "unknown" if fact is None else str(fact)) for name, fact in facts.items()]
    for name, value in record["provenance"].items():
        if text := console.worded(value):
            lines.append((f"  {name.replace('_', ' ')}", text))
    return record, Table(lines, ["fact", "value"], left=2)


@dataclass(frozen=True)
class ConvertOptions(Printing):
    """Write a model in another form.

    The outputs stay the same, but --dtype float16 rounds the weights, and --context-length and
    --image-size interpolate position embeddings, for a model to train further.

    Forms:
        open-clip  checkpoint folder that open_clip and every verb here can read
        hf         folder of transformers' CLIPModel, SiglipModel or BLIP, whole
        hf-vision  folder of transformers' CLIPVisionModel: the image tower alone
        hf-text    folder of CLIPTextModelWithProjection: the text tower alone
        merged     an adapter merged into its base, as a checkpoint folder
        lora       an adapter folder, from a PEFT folder
        peft       a PEFT folder for the CLIPModel of the base
        onnx       both towers, checked with onnxruntime

    hf also writes the tokenizer and the image processor.

    Examples:
        compoclip convert runs/fsc/model fsc-hf --to hf
        compoclip convert negclip.pth negclip --to open-clip --base ViT-B-32-quickgelu:openai
        compoclip convert runs/dac/adapter dac --to merged
        compoclip convert ViT-B-32-quickgelu:openai long --to open-clip --context-length 248

    Args:
        source: The model, written as for evaluate; with --base also a weights file alone or a PEFT
            folder.
        destination: Folder to write.
        to: The form to write.
        base: The model that the weights were trained from. It gives the architecture, and also the
            activation if the weights differ little from the base.
        activation: The activation of weights that do not record it.
        dtype: float16 halves the size of open-clip, merged and the hf forms.
        context_length: Tokens per text. The first 20 positions stay, the others are stretched, as
            in Long-CLIP.
        image_size: Side of images in pixels.
        push_to_hub: Put DST on the Hugging Face hub too, as `compoclip push DST REPO` does.
    """

    source: Annotated[ModelName, Shown("SRC", positional=True)]
    destination: Annotated[OutputFolder, Shown("DST", positional=True)]
    to: Literal["open-clip", "hf", "hf-vision", "hf-text", "lora", "peft", "merged", "onnx"]
    base: ModelName | None = None
    activation: Literal["gelu", "quick_gelu"] | None = None
    dtype: Literal["float32", "float16"] = "float32"
    context_length: Annotated[int, Within(2)] | None = None
    image_size: Count | None = None
    push_to_hub: HubName | None = None


def convert_main(options: ConvertOptions) -> Outcome:
    """Parse, convert, say what was written."""
    from compoclip.models.conversion import convert
    from compoclip.models.formats import hub

    written = convert(
        options.source,
        options.destination,
        options.to,
        base=options.base,
        activation=options.activation,
        dtype=options.dtype,
        context_length=options.context_length,
        image_size=options.image_size,
    )
    record = {"source": options.source, "written": str(options.destination), **written}
    facts = {name.replace("_", " "): console.worded(value) for name, value in record.items()}
    if options.push_to_hub:
        pushed = hub.publish(options.destination, options.push_to_hub)
        console.note(f"{options.destination} -> {pushed.url}")
    rows = [fact for fact in facts.items() if fact[1]]
    return record, Table(rows, ["fact", "value"], left=2)


@dataclass(frozen=True)
class PushOptions(Printing):
    """Put a model folder on the Hugging Face hub: weights (safetensors), configuration, tokenizer
    and model card, in one commit. Other files of the folder are not uploaded.

    The folder is what train or convert wrote: RUN/model, RUN/adapter, or any form of convert. You
    are logged in by `hf auth login`, or HF_TOKEN is set. Others then load hf-hub:REPO.

    Examples:
        compoclip push runs/fsc/model me/fsc-clip-b32 --results results/fsc
        compoclip push fsc-hf me/fsc-clip-b32-hf --private

    Args:
        folder: The model folder.
        repository: Where to put it, USER/NAME or ORGANISATION/NAME; created if it does not exist.
        results: What evaluate measured of this model (folders or files): the card is written anew
            with a table of them, and with the entries that the hub shows beside a model.
        private: Make a new repository private.
        message: Message of the commit.
    """

    folder: Annotated[ModelFolder, Shown("FOLDER", positional=True)]
    repository: Annotated[HubName, Shown("REPO", positional=True)]
    results: Annotated[tuple[InputPlace, ...], Shown("RESULTS ...")] = ()
    private: bool = False
    message: str = ""


def push_main(options: PushOptions) -> Outcome:
    """Parse, upload, say what and where."""
    from compoclip.evaluation.results import card_rows, load_results
    from compoclip.models.checkpoint import place_of
    from compoclip.models.config import RECORD, read_record
    from compoclip.models.formats.hub import CardResult, model_files, publish

    folder = Path(place_of(str(options.folder)))
    rows: tuple[CardResult, ...] = ()
    if options.results:
        if RECORD not in model_files(folder):
            raise CompoclipError(f"{folder}: has no {RECORD} that says whose results these are")
        measured = [result for path in options.results for result in load_results(path)]
        rows = card_rows(measured, read_record(folder / RECORD)[0])
    pushed = publish(
        folder, options.repository, results=rows, private=options.private, message=options.message
    )
    record = {"url": pushed.url, "files": list(pushed.files)}
    return record, f"{folder} -> {pushed.url}: {', '.join(pushed.files)}"
