"""`compoclip index PHOTOS`, `compoclip search INDEX TEXT`: search of one's own photos."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from compoclip.cli.caption_input import CaptionFile
from compoclip.cli.options import OnDevice, Outcome
from compoclip.config import Count, Shown, Within
from compoclip.console import counted, note, table
from compoclip.errors import UsageError
from compoclip.files import require_writable, write_text
from compoclip.ranks import device_named
from compoclip.run import DataOptions

if TYPE_CHECKING:
    from compoclip.search import Found

_MOST_SHOWN = 5
_POOL = 100  # photos that --rerank orders


@dataclass(frozen=True)
class IndexOptions(DataOptions, OnDevice):
    """Encode photos and keep their features in one file, for search.

    The same command again encodes what is new or changed, and drops what is gone.

    Examples:
        compoclip index photos/ --model bundled --out photos.index
        compoclip index pairs.csv --images photos/ --model bundled --out photos.index

    Args:
        photos: A folder of photos, at any depth, or image-text data as for train --data.
        model: As for evaluate.
        out: The index.
        duplicates: Also list groups of photos whose cosine is at least this, e.g. 0.98.
        calibrate: Captions of photos in the index, as for train --data, that the model was not
            trained on; of a folder of photos paths start there. They set the score below which
            search says that nothing matches.
        batch_size: Photos encoded at once [default: 64, on a GPU 512].
    """

    photos: Annotated[str, Shown("PHOTOS", positional=True)]
    model: str
    out: Path
    duplicates: Annotated[float, Within(-1, 1)] | None = None
    calibrate: str = ""
    batch_size: Count | None = None


def index_main(options: IndexOptions) -> Outcome:
    """Encode what is new, print what was done."""
    require_writable(options.out.parent)
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.models.checkpoint import load_model
    from compoclip.search import calibrate, duplicates, index_photos

    encoder = ModelEncoder(load_model(options.model, device=device_named(options.device)))
    folder = Path(options.model)
    model = str(folder.absolute()) if folder.exists() else options.model
    request = options.request(options.photos)
    index = index_photos(request, encoder, options.out, model, options.batch_size)
    about = index.about
    done = ", ".join(f"{n:,} {what}" for what, n in about["changes"].items())
    lines = [f"{options.out}: {counted(len(index.names), 'photo')} ({done})"]
    lines += [f"left out: {number:,} x {why}" for why, number in about["left_out"].items()]
    if unreadable := list(about["unreadable"].values()):
        lines += [f"left out: {counted(len(unreadable), 'unreadable photo')} (--json lists all)"]
        lines += [f"  {why}" for why in unreadable[:_MOST_SHOWN]]
    if options.calibrate:
        root = Path(options.photos) if Path(options.photos).is_dir() else options.images
        held_out = replace(options, images=root).request(options.calibrate)
        index = calibrate(index, encoder, held_out)
        index.save(options.out)
        n = index.about["calibration"]
        lines += [
            f"nothing matches below {n['threshold']:.3f}: {n['missed']:.1%} of "
            f"{counted(n['captions'], 'caption')} fall below it with their photo in the index, "
            f"{n['noticed']:.1%} without; {n['left_out']:,} left out"
        ]
    record = {"out": str(options.out), "photos": len(index.names), **index.about}
    if options.duplicates is not None:
        record["duplicates"] = groups = duplicates(index, options.duplicates)
        lines += [f"nearly equal: {counted(len(groups), 'group')}", *map("  ".join, groups)]
    return record, "\n".join(lines)


@dataclass(frozen=True)
class SearchOptions(OnDevice):
    """Find the photos of an index with the highest cosine to texts or images, exactly.

    Examples:
        compoclip search photos.index "a red cup left of a plate" --top 5
        compoclip search photos.index --queries captions.txt --page found.html

    Args:
        index: Made by compoclip index.
        texts: What to look for.
        queries: File of more texts: .txt, one per line, or .jsonl, .csv or .tsv with a column
            "caption".
        image: Images, to find similar photos.
        top: Photos per query.
        rerank: Order the 100 best anew, by a score of evaluate (local, maxsim, itm), or by
            "subgraphs", the statements that the text makes.
        negation: Weight of what a text denies ("a street without cars"), which counts against a
            photo.
        model: The model that made the index, where it has moved.
        images: The folder that the photos have moved to.
        page: HTML file that shows the photos.
    """

    index: Annotated[Path, Shown("INDEX", positional=True)]
    texts: Annotated[tuple[str, ...], Shown("TEXT ...", positional=True)] = ()
    queries: Path | None = None
    image: Annotated[tuple[Path, ...], Shown("FILE ...")] = ()
    top: Annotated[int, Within(1, 1000)] = 10
    rerank: Literal["local", "maxsim", "itm", "subgraphs"] | None = None
    negation: Annotated[float, Within(0, 10)] = 0.0
    model: str = ""
    images: Path | None = None
    page: Path | None = None


_REMEDIES = {
    "missing": "are not where they were; name their folder with --images, or index again",
    "changed": "have changed since they were indexed; run compoclip index again",
}


def main(options: SearchOptions) -> Outcome:
    """Load index and model, search, print a table per query."""
    if options.rerank and options.image:
        raise UsageError("--rerank orders what texts find; leave --image out")
    more = [text for _, text in CaptionFile(options.queries)] if options.queries else []
    queries: list[str | Path] = [
        *options.texts,
        *(text for text in more if text.strip()),
        *options.image,
    ]
    if not queries:
        raise UsageError('say what to look for: compoclip search INDEX "a red cup"')
    require_writable((options.page or Path("page")).parent)
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.models.checkpoint import load_model
    from compoclip.search import read_index, rerank, results_page, search

    index = read_index(options.index)
    model = load_model(options.model or index.about["model"], device=device_named(options.device))
    encoder = ModelEncoder(model)
    index.require(encoder, options.index)
    pool = max(options.top, _POOL) if options.rerank else options.top
    found = search(index, encoder, queries, pool, options.negation)
    if options.rerank:
        found = [rerank(index, model, each, options.rerank, options.images) for each in found]
        found = [replace(each, hits=each.hits[: options.top]) for each in found]
    rows = list({hit.row: None for each in found for hit in each.hits})
    for state, names in index.outdated(rows, options.images).items():
        if names:
            note(
                f"{options.index}: {len(names)} of {len(rows)} photos {_REMEDIES[state]} "
                f"(first: {names[0]})"
            )
    if left_out := sum(index.about["left_out"].values()) + len(index.about["unreadable"]):
        note(f"{options.index}: {counted(left_out, 'photo')} could not be indexed")
    if options.page:
        write_text(options.page, results_page(index, found, options.images))
        note(f"written to {options.page}")
    return [*map(asdict, found)], "\n\n".join(map(_text, found))


def _text(found: Found) -> str:
    """Return a table of what one query found."""
    hits = enumerate(found.hits, start=1)
    rows = [[str(rank), hit.photo, f"{hit.score:.4f}"] for rank, hit in hits]
    lines = [found.query, table(rows, ["rank", "photo", "score"], left=2)]
    if found.denied:
        lines.insert(1, f"asked for: {found.asked}; denied: {', '.join(found.denied)}")
    if not found.matches:
        lines.append(f"nothing matches: the best cosine is {found.best:.3f}")
    return "\n".join(lines)
