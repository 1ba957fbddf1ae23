"""`compoclip serve`, `play`, `index` and `search`: a model for programs and people."""

from __future__ import annotations

import sys
import webbrowser
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from compoclip import plugins
from compoclip.cli.caption_input import CaptionFile, note_left_out
from compoclip.cli.options import OnDevice, OnEngine, Outcome
from compoclip.config import (
    DataName,
    IndexFile,
    InputFile,
    InputFolder,
    ModelName,
    NamedModel,
    OutputFile,
    OutputIndex,
    Shown,
)
from compoclip.console import counted, note, reasons_listed
from compoclip.data.options import DataOptions
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import write_text
from compoclip.models.config import note_assumptions
from compoclip.models.names import require_model
from compoclip.printed import tell
from compoclip.ranks import device_named
from compoclip.typed import Count, Within
from compoclip.web.limits import BatchSettings

if TYPE_CHECKING:
    from compoclip.models import LoadedModel
    from compoclip.search import Found, PhotoIndex
    from compoclip.web.app import Website


Port = Annotated[int, Within(0, 65535)]


@dataclass(frozen=True, kw_only=True)
class _ServingOptions(OnDevice):
    """Where to serve.

    Args:
        host: Address to serve at. The default accepts this computer only; any other address accepts
            everybody who can reach it, without a password.
        names: Further host names that requests may use, such as a proxy's; other names are refused.
        port: Port to serve at; 0 takes a free one.
        index: Photos to search, made by compoclip index with the (first) model.
    """

    host: str = "127.0.0.1"
    names: Annotated[tuple[str, ...], Shown("NAME ...")] = ()
    port: Port = 8000
    index: IndexFile | None = None


@dataclass(frozen=True)
class ServeOptions(_ServingOptions):
    """Serve a model over HTTP: embeddings in OpenAI's format, and scores of images and texts.

    POST /v1/embeddings takes texts and images (data URLs, base64), POST /v1/scores images and
    texts. With --index, POST /v1/search finds photos. GET /v1/models and /health return the model
    and the load. Waiting requests are encoded together; the results do not depend on that. Ctrl-C
    or SIGTERM ends the server after open requests are answered.

    Examples:
        compoclip serve bundled
        compoclip serve clip=runs/fsc-clip/model --port 8080 --device cuda

    Args:
        model: A model, written as evaluate takes it: bundled, a folder, ViT-B-32-quickgelu:openai.
            NAME=MODEL gives its name for clients.
        max_batch: Most texts or images in one call of the model.
        max_wait: Milliseconds that a request may wait for others to share a call.
        max_items: Most texts and images in one request.
        queue: Most texts and images of all open requests; further requests get 503 and
            Retry-After.
        max_megabytes: Most megabytes of one request; all requests together may have eight times as
            many.
    """

    model: Annotated[NamedModel, Shown("MODEL", positional=True)]
    max_batch: Count = BatchSettings.size
    max_wait: Annotated[float, Within(0, 10_000)] = BatchSettings.wait * 1000
    max_items: Count = BatchSettings.items
    queue: Count = BatchSettings.queue
    max_megabytes: Count = 32


def serve_main(options: ServeOptions) -> int:
    """Load the model, serve until interrupted."""
    settings = BatchSettings(
        options.max_batch, options.max_wait / 1000, options.max_items, options.queue
    )
    from compoclip.programs.run import load_models
    from compoclip.web.service import Service, model_site

    ((name, loaded),) = load_models((options.model,), options.device).items()
    index = _index(options.index, loaded)
    service = Service(name, loaded, settings, index)
    body = options.max_megabytes * 1_000_000
    site = model_site(service, options.host, options.names, body)
    if not serve(site, options, {"model": name}, "model", "v1/embeddings"):
        return 1
    service.close()
    return 0


def _index(path: Path | None, loaded: LoadedModel) -> PhotoIndex | None:
    """Read the photos to search, once the model is known to be theirs."""
    if path is None:
        return None
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.search import read_index

    index = read_index(path)
    index.require(ModelEncoder(loaded), path)
    return index


def serve(
    site: Website,
    options: _ServingOptions,
    record: Mapping[str, Any],
    reachable: str,
    page: str = "",
) -> bool:
    """Serve a website until interrupted; return whether all requests were answered.

    record: what --json prints beside the address. reachable: what others can reach, for the
    warning. page: the part of the address to print.
    """
    from compoclip.web.app import Server

    server = Server(site, options.host, options.port)
    if not site.loopback:
        note(f"{options.host}: others can reach this {reachable}; there is no password")
    tell(options.json, {"url": server.url, **record}, f"{server.url}{page}   (Ctrl-C ends it)")
    sys.stdout.flush()  # who reads it by a pipe waits for the address
    with suppress(KeyboardInterrupt):
        server.run()
    note("ended; some requests went unanswered" if site.busy else "ended")
    return not site.busy


@dataclass(frozen=True, kw_only=True)
class PlayOptions(_ServingOptions):
    """Serve a web page: drop an image, type a caption, see which rewrites fool the model.

    The page opens on a scored example. It scores all rewrites of the caption, negatives and
    positives, and marks the misranked ones. A click on a word shows the patches it aligns with. Two
    models are shown side by side. With --index, a second tab searches your photos by the first
    model, or without a MODEL by the model of the index. It needs no network. Ctrl-C ends it.

    POST {"image": BASE64, "caption": TEXT} to /api/score or /api/maps returns the same as JSON.

    Examples:
        compoclip play bundled
        compoclip play base=bundled tuned=runs/fsc-clip/model --port 8080
        compoclip play --index photos.index

    Args:
        models: One or two, as for evaluate; NAME=MODEL gives a name.
    """

    models: Annotated[tuple[NamedModel, ...], Shown("MODEL [MODEL]", positional=True)] = ()
    port: Port = 7860


def play_main(options: PlayOptions) -> int:
    """Load the models, serve until interrupted."""
    if len(options.models) > 2:
        raise UsageError("name one model, or two to see side by side; see play --help")
    if not options.models and options.index is None:
        raise UsageError("name a model, or the photos to search with --index; see play --help")
    from compoclip.programs.run import load_models
    from compoclip.web.playground import Playground, play_site

    models = options.models
    if options.index is not None and not models:
        from compoclip.search import read_index

        models = (read_index(options.index).about["model"],)
    loaded = load_models(models, options.device)
    size = max(model.preprocess.size[0] for model in loaded.values())
    examples: list[tuple[str, bytes]] = []
    for point in plugins.installed("examples").values():
        examples += plugins.imported(point, "examples")(size)
    index = _index(options.index, next(iter(loaded.values())))
    playground = Playground(loaded, examples, index)
    site = play_site(playground, options.host, options.names)
    serve(site, options, {"models": list(loaded)}, "page")
    return 0


_MOST_SHOWN = 5
_POOL = 100  # photos that --rerank orders


@dataclass(frozen=True)
class IndexOptions(DataOptions, OnDevice, OnEngine):
    """Encode photos and keep their features in one file, for search.

    The same command again encodes new and changed photos, and drops photos that are gone.

    Examples:
        compoclip index photos/ --model tuned/model --out photos.index
        compoclip index pairs.csv --images photos/ --model bundled --out photos.index

    Args:
        photos: A folder of photos, at any depth, or image-text data as for train --data. Without
            --split, all photos of a folder are taken.
        model: The model to encode with: a folder such as tuned/model, which tune wrote, bundled, or
            a CLIP such as ViT-B-32-quickgelu:openai.
        out: The index: a file, with --to lancedb a folder.
        duplicates: Also list groups of photos whose cosine is at least this, e.g. 0.98.
        calibrate: Captions of indexed photos, in a form that train --data takes. The model must not
            have been trained on them: the test split is read, or else val, unless --split names
            one. If PHOTOS is a folder, paths are relative to it, and --split and the options of
            captions are for these alone. The captions set the score below which search says that
            nothing matches.
        batch_size: Photos encoded at once [default: 64, on a GPU 512].
        fast: Compare only the size, the time and both ends of each file. Otherwise all bytes of all
            photos are compared.
        vectors: Numbers of the features: float32, or int8, which take a quarter of the space. An
            existing index can only be updated with its own kind [default: float32].
        to: file, or lancedb for a table that search reads from the disk, for more photos than fit
            into memory [default: file].
    """

    photos: Annotated[DataName, Shown("PHOTOS", positional=True)]
    model: ModelName
    out: OutputIndex
    duplicates: Annotated[float, Within(-1, 1)] | None = None
    calibrate: DataName = ""
    batch_size: Count | None = None
    fast: bool = False
    vectors: Literal["float32", "int8"] | None = None
    to: Literal["file", "lancedb"] | None = None


def index_main(options: IndexOptions) -> Outcome:
    """Encode what is new, print what was done."""
    from compoclip.cluster import require_engine
    from compoclip.data.sources.open import request_of
    from compoclip.data.usable import require_some_file
    from compoclip.search.photos import list_photos

    require_engine(options.engine)
    request = request_of(options.photos, options)
    if options.calibrate and request.is_photo_folder():  # these are then for the captions alone
        request = replace(
            request, split=None, image_column=None, caption_column=None, templates=None
        )
        options = replace(options, exclude=())
    photos = list_photos(request)  # a mistake in the data is said before torch is loaded
    if photos.source and photos.root:
        files = [Path(photos.root, name) for name in photos.names]
        require_some_file(files, photos.source.describe())
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.models.checkpoint import load_model
    from compoclip.search import calibrate, duplicates, index_photos

    encoder = ModelEncoder(load_model(options.model, device=device_named(options.device)))
    index = index_photos(
        request,
        encoder,
        options.out,
        options.model,
        options.batch_size,
        options.fast,
        options.vectors,
        options.to,
        options.engine,
        photos,
    )
    about = index.about
    done = ", ".join(f"{n:,} {change}" for change, n in about["changes"].items())
    lines = [f"{options.out}: {counted(len(index.names), 'photo')} ({done})"]
    lines += [f"left out: {listed}" for listed in reasons_listed(about["left_out"])]
    if unreadable := list(about["unreadable"].values()):
        lines += [f"left out: {counted(len(unreadable), 'unreadable photo')} (--json lists all)"]
        lines += [f"  {reason}" for reason in unreadable[:_MOST_SHOWN]]
    if options.calibrate:
        root = Path(options.photos) if Path(options.photos).is_dir() else options.images
        held_out = request_of(options.calibrate, replace(options, images=root))
        index = calibrate(index, encoder, held_out)
        index.save(options.out)
        n = index.about["calibration"]
        lines += [
            f"nothing matches below {n['threshold']:.3f}: {n['missed']:.1%} of "
            f"{counted(n['captions'], 'caption')} fall below it with their photo in the index, "
            f"{n['noticed']:.1%} without; {n['left_out']:,} left out"
        ]
    record = {"out": str(options.out), "photos": len(index.names), "vectors": index.vectors}
    record |= index.about
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
        queries: File of more texts: .txt, one per line, or .csv, .tsv, .jsonl, .jsonl.gz, .json or
            .parquet with a column "caption", or else one of another usual name.
        image: Images, to find similar photos.
        top: Photos per query.
        rerank: Re-rank the top 100 by a score of evaluate (local, maxsim, itm), or by
            "subgraphs", the statements that the text makes.
        negation: What denied words do ("a street without cars"): split ranks by the rest of the
            text; subtract:W, deo:W and steer:W push away from what is denied, by a weight W; off
            uses the text unchanged. A number is the weight of subtract; its default is 0.25.
        model: The model that made the index, if it was moved.
        images: The folder that the photos have moved to.
        page: HTML file that shows the photos [default: INDEX.html, for 20 queries at most].
        open: Open that page in the browser.
    """

    index: Annotated[IndexFile, Shown("INDEX", positional=True)]
    texts: Annotated[tuple[str, ...], Shown("TEXT ...", positional=True)] = ()
    queries: InputFile | None = None
    image: Annotated[tuple[InputFile, ...], Shown("FILE ...")] = ()
    top: Annotated[int, Within(1, 1000)] = 10
    rerank: Literal["local", "maxsim", "itm", "subgraphs"] | None = None
    negation: Annotated[str, Shown("MODE[:W]")] = "subtract"
    model: ModelName = ""
    images: InputFolder | None = None
    page: OutputFile | None = None
    open: bool = False


_MOST_PAGED = 20  # queries on a page that nobody asked for
_REMEDIES = {
    "missing": "are not where they were; name their folder with --images, or index again",
    "changed": "have changed since they were indexed; run compoclip index again",
}


def search_main(options: SearchOptions) -> Outcome:
    """Load index and model, search, print a table per query."""
    from compoclip.search.index import read_index
    from compoclip.search.modes import negation_mode

    negation_mode(options.negation)
    if options.rerank and options.image:
        raise UsageError("--rerank works only with texts; leave --image out")
    queries: list[str | Path] = [*options.texts]
    if options.queries:
        left_out: Counter[str] = Counter()
        lines = CaptionFile(options.queries).rows(left_out)
        queries += [text for _, captions in lines for text in captions if text.strip()]
        note_left_out(left_out)
    queries += options.image
    if not queries:
        raise UsageError('say what to look for: compoclip search INDEX "a red cup"')
    index = read_index(options.index)
    require_model(options.model or index.about["model"])
    from compoclip.data.folders import NO_LOSS

    answers = _answers(options, index, queries)
    rows = list({hit.row: None for answer in answers for hit in answer.hits})
    for state, names in index.outdated(rows, options.images).items():
        if names:
            note(
                f"{options.index}: {len(names)} of {counted(len(rows), 'photo')} "
                f"{_REMEDIES[state]} (first: {names[0]})"
            )
    missing = [n for reason, n in index.about["left_out"].items() if reason not in NO_LOSS]
    if unindexed := sum(missing) + len(index.about["unreadable"]):
        note(f"{options.index}: {counted(unindexed, 'photo')} could not be indexed")
    if options.page or options.open or not options.json:
        _show(options, index, answers)
    return [*map(asdict, answers)], [answer.text() for answer in answers]


def _answers(
    options: SearchOptions, index: PhotoIndex, queries: Sequence[str | Path]
) -> list[Found]:
    """Search, by the text tower alone where that will do."""
    from compoclip.search.query import search, text_encoder

    model, kind = options.model or index.about["model"], options.rerank
    texts = text_encoder(index, queries, model, options.device, kind, options.negation)
    if texts is not None:
        note_assumptions(model, index.about["identity"].get("assumed", ()))
        return search(index, texts, queries, options.top, options.negation)
    from compoclip.evaluation.encoder import ModelEncoder
    from compoclip.models.checkpoint import load_model

    loaded = load_model(model, device=device_named(options.device))
    encoder = ModelEncoder(loaded)
    index.require(encoder, options.index)
    pool = max(options.top, _POOL) if kind else options.top
    answers = search(index, encoder, queries, pool, options.negation)
    if kind is None:
        return answers
    from compoclip.search.rerank import rerank

    reranked = [rerank(index, loaded, answer, kind, options.images) for answer in answers]
    return [replace(answer, hits=answer.hits[: options.top]) for answer in reranked]


def _show(options: SearchOptions, index: PhotoIndex, answers: Sequence[Found]) -> None:
    """Write the page of the answers, print its address, open it if that is wanted.

    A page that was not asked for may fail: the folder of the index need not be writable.
    """
    from compoclip.search import index_page

    path = options.page or options.index.with_name(f"{options.index.name}.html")
    paged = answers if options.page else answers[:_MOST_PAGED]
    try:
        write_text(path, index_page(index, paged, options.index, options.images))
    except CompoclipError as error:
        if options.page or options.open:
            raise
        note(f"no page of the photos: {error}")
        return
    address = path.absolute().as_uri()
    note(f"see the photos: {address}")
    if options.open and not webbrowser.open(address):
        note("there is no browser to open it in")
