"""`compoclip push FOLDER REPO`: put a model on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from compoclip import console
from compoclip.cli.options import parse
from compoclip.errors import CompoclipError


@dataclass(frozen=True)
class PushOptions:
    """Put a model folder on the Hugging Face hub: weights (safetensors), configuration, tokenizer
    and model card, in one commit, and nothing else that lies in the folder.

    The folder is what train or convert wrote: RUN/model, RUN/adapter, or any form of convert. You
    are logged in by `hf auth login`, or HF_TOKEN is set. Others then load hf-hub:REPO.

    Examples:
        compoclip push runs/fsc/model me/fsc-clip-b32 --results results/fsc
        compoclip push fsc-hf me/fsc-clip-b32-hf --private

    Args:
        folder: The model folder.
        repository: Where to put it, USER/NAME or ORGANISATION/NAME; made if it is not there.
        results: What evaluate measured of this model (folders or files): the card is written anew
            with a table of them, and with the entries that the hub shows beside a model.
        private: Make a new repository private.
        message: Message of the commit.
        json: Print what was uploaded as JSON.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    repository: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="REPO")]
    results: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RESULTS ...")] = ()
    private: bool = False
    message: str = ""
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse, upload, say what and where."""
    options = parse(PushOptions, "push", argv)
    from compoclip.evaluation.card_rows import card_rows
    from compoclip.evaluation.io import load_results
    from compoclip.models.card import CardResult
    from compoclip.models.hub import model_files, plain_spec, publish
    from compoclip.models.stored import RECORD, read_record

    folder = Path(plain_spec(str(options.folder)))
    rows: tuple[CardResult, ...] = ()
    if options.results:
        if RECORD not in model_files(folder):
            raise CompoclipError(f"{folder}: has no {RECORD} that says whose results these are")
        identity, _ = read_record(folder / RECORD)
        measured = [each for path in options.results for each in load_results(path)]
        rows = card_rows(measured, identity)
    made = publish(
        folder,
        options.repository,
        results=rows,
        private=options.private,
        message=options.message,
    )
    if options.json:
        console.emit_json({"url": made.url, "files": list(made.files)})
    else:
        print(f"{folder} -> {made.url}: {', '.join(made.files)}")
    return 0
