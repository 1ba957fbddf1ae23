"""`compoclip play MODEL [MODEL]`: the web playground."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from compoclip import own
from compoclip.cli.options import parse, require_within
from compoclip.cli.serve import MOST_PORT, serve
from compoclip.config import Shown
from compoclip.errors import UsageError
from compoclip.run import load_models


@dataclass(frozen=True)
class PlayOptions:
    """A page in the browser: drop an image, type a caption, see which rewrites fool the model.

    Every rewrite that the program can make of the caption is scored, negatives and positives, and
    what is on the wrong side is called out. A click on a word shows the patches it aligns with. Two
    models stand side by side. Needs no network. POST /api/score and /api/maps answer the same as
    JSON, to {"image": BASE64, "caption": TEXT}. Ctrl-C ends it.

    Examples:
        compoclip play bundled
        compoclip play base=bundled tuned=runs/fsc-clip/model --port 8080

    Args:
        models: One or two, as for evaluate; NAME=MODEL gives a name.
        host: Address to serve at. The default lets nobody else in; any other one lets everybody in
            who can reach it.
        names: Names beside its address and that of this computer by which browsers may ask for the
            page, e.g. that of a proxy before it; other names are refused.
        port: 0 takes a free one.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        json: Print the address as JSON.
    """

    models: Annotated[tuple[str, ...], Shown("MODEL [MODEL]", positional=True, hint="(required)")]
    host: str = "127.0.0.1"
    names: Annotated[tuple[str, ...], Shown("NAME ...")] = ()
    port: int = 7860
    device: str = "auto"
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Load the models, serve until interrupted."""
    options = parse(PlayOptions, "play", argv)
    if len(options.models) > 2:
        raise UsageError("name one model, or two to see side by side; see play --help")
    require_within(0, MOST_PORT, options, "port")
    from compoclip.web.playground import Playground, play_site

    loaded = load_models(options.models, options.device)
    size = max(each.preprocess.size[0] for each in loaded.values())
    found = [own.imported(each, "examples")(size) for each in own.installed("examples").values()]
    playground = Playground(loaded, [each for examples in found for each in examples])
    site = play_site(playground, options.host, options.names)
    serve(site, options, {"models": list(loaded)}, "page")
    return 0
