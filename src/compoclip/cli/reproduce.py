"""`compoclip reproduce NAME`: a paper's experiment from the downloads to a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compoclip.benchmarks.fetch import fetch
from compoclip.benchmarks.sources import RemoteFile
from compoclip.cli.data import agreed, byte_progress
from compoclip.cli.options import Outcome
from compoclip.console import columns, note
from compoclip.evaluation.plan_page import stated
from compoclip.reproduce import ReproduceOptions, reproduce


def reproduce_main(options: ReproduceOptions) -> Outcome | int:
    """State what it takes, ask, run all stages, print the page."""

    def agree(plan: Mapping[str, Any]) -> bool:
        note(columns(stated(plan)))
        return options.yes or agreed("Start this?")

    def get(job: RemoteFile) -> None:
        with byte_progress(job.target) as progress:
            note(fetch(job, options.data, url_base=options.url_base, progress=progress))

    bundle = reproduce(options, agree, get)
    if bundle is None:
        return 1
    text = (options.out / "page.md").read_text(encoding="utf-8")
    told = f"{text}\n{bundle}: compoclip verify {bundle} checks it"
    return {"bundle": str(bundle), "page": text}, told
