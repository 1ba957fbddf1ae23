"""`compoclip maps MODEL ...`: where words look: overlays of an image, or accuracy on scenes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compoclip import console
from compoclip.cli.options import Models, parse
from compoclip.errors import UsageError
from compoclip.files import require_writable, write_atomically, write_json
from compoclip.run import load_models, require_least

if TYPE_CHECKING:
    from compoclip.analysis.pointing import MeanShare
    from compoclip.models.checkpoint import LoadedModel

Shares = Mapping[str, Mapping[str, "MeanShare"]]


@dataclass(frozen=True)
class MapsOptions:
    """Token-patch maps: which patches of an image each word of a caption aligns with.

    With --image and --caption, a picture a word is written to OUT. Without, words are measured on
    drawn scenes of two unlike things ("a red star and a blue mug"): how much of a word's attention
    lies in the box of the thing it names, how often its peak does, and how often that box gets more
    attention a pixel than the other's, each against chance. The others are compared with the first
    model, scene by scene.

    Examples:
        compoclip maps base=bundled tuned=runs/fsc-clip/model
        compoclip maps bundled --image cup.jpg --caption "a red cup" --out maps

    Args:
        models: As for evaluate; NAME=MODEL gives a name.
        image: Image file to map.
        caption: Its caption.
        scenes: Drawn scenes to measure on.
        seed: Seed of the scenes and of the bootstrap.
        resamples: Bootstrap resamples.
        out: Folder for the pictures, or for maps.json with the numbers.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        json: Print what was found as JSON.
    """

    models: Models
    image: Path | None = None
    caption: str | None = None
    scenes: int = 500
    seed: int = 0
    resamples: int = 2000
    out: Path | None = None
    device: str = "auto"
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Parse, load, map one image or measure on scenes."""
    options = parse(MapsOptions, "maps", argv)
    if not options.models:
        raise UsageError("name at least one model; see maps --help")
    if (options.image is None) != (options.caption is None):
        raise UsageError("--image and --caption go together")
    if options.image is not None and options.out is None:
        raise UsageError("say with --out where the pictures are to go")
    require_least(1, options, "scenes", "resamples")
    if options.out is not None:
        require_writable(options.out)
    models = load_models(options.models, options.device)
    return _measure(options, models) if options.image is None else _draw(options, models)


def _draw(options: MapsOptions, models: Mapping[str, LoadedModel]) -> int:
    """A picture a word and model: OUT/MODEL/01-word.png."""
    assert options.image is not None
    assert options.caption is not None
    assert options.out is not None
    from compoclip.analysis.maps import overlay, patch_maps
    from compoclip.data.decode import decode

    image = decode(options.image, name=str(options.image))
    records, rows = [], []
    for name, model in models.items():
        maps = patch_maps(model, image, options.caption)
        for place, word in enumerate(maps.words, 1):
            plain = "".join(c for c in word.word if c.isalnum()) or "mark"
            path = options.out / name / f"{place:02}-{plain}.png"
            made = overlay(image, word.attention, maps.region)
            write_atomically(path, partial(made.save, format="PNG"))
            records.append(
                {"model": name, "word": word.word, "cosine": word.cosine, "picture": str(path)}
            )
            rows.append([name, word.word, f"{word.cosine:.3f}", str(path)])
        for lost in maps.left_out:
            console.note(f"{name}: '{lost}' lies beyond the context and has no map")
    text = console.table(rows, ["model", "word", "cosine", "picture"], left=2)
    return console.tell(options.json, records, text)


def _measure(options: MapsOptions, models: Mapping[str, LoadedModel]) -> int:
    """Pointing accuracy of every model, and its difference to the first."""
    from compoclip.analysis.pointing import gains, measure_pointing, shares
    from compoclip.world.dataset import bundled_world
    from compoclip.world.pointing import pointing_scenes

    size = max(max(each.preprocess.size) for each in models.values())
    scenes = pointing_scenes(bundled_world(), options.scenes, size, options.seed)
    draw = options.resamples, options.seed
    found = {name: measure_pointing(model, scenes) for name, model in models.items()}
    first = next(iter(found))
    means = {name: shares(each, *draw) for name, each in found.items()}
    gaps = {name: gains(found[first], found[name], *draw) for name in found if name != first}
    records = [
        {
            "model": name,
            "weights": models[name].identity.weights,
            "scenes": options.scenes,
            "seed": options.seed,
            "shares": _record(means[name]),
            **({"against_first": _record(gaps[name])} if name in gaps else {}),
        }
        for name in found
    ]
    if options.out is not None:
        write_json(options.out / "maps.json", records)
    return console.tell(options.json, records, _text(options, means, gaps))


def _record(found: Shares) -> dict[str, Any]:
    return {kind: {m: asdict(s) for m, s in each.items()} for kind, each in found.items()}


def _text(options: MapsOptions, means: Mapping[str, Shares], gaps: Mapping[str, Shares]) -> str:
    """A row a model and sort of word; below, the differences to the first model."""
    from compoclip.analysis.pointing import MEASURES
    from compoclip.evaluation.tables import bracketed

    def cell(share: MeanShare, sign: str = "") -> str:
        return f"{100 * share.value:{sign}.1f} {bracketed(share.low, share.high, sign)}"

    kinds = list(next(iter(means.values())))
    rows = []
    for kind in kinds:
        rows += [[n, kind, *(cell(each[kind][m]) for m in MEASURES)] for n, each in means.items()]
        chance = next(iter(means.values()))[kind]
        rows.append(["chance", kind, *(f"{100 * chance[m].chance:.1f}" for m in MEASURES)])
    lines = [console.table(rows, ["model", "words", *MEASURES], left=2)]
    if gaps:
        first = next(iter(means))
        rows = [
            [name, kind, *(cell(each[kind][m], "+") for m in MEASURES)]
            for kind in kinds
            for name, each in gaps.items()
        ]
        lines.append(console.table(rows, [f"minus {first}", "words", *MEASURES], left=2))
    scenes = console.counted(options.scenes, "scene")
    lines.append(
        "\n".join(f"{name}: {about}" for name, about in MEASURES.items())
        + f"\npercent with 95 % intervals, {scenes}, seed {options.seed}; chance: a "
        "map that is even over the image"
    )
    return "\n\n".join(lines)
