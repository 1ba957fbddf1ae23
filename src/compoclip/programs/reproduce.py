"""Reproduce a paper: fetch, train, evaluate and bundle as a protocol says.

A composition of `data fetch`, `train`, `evaluate` and `bundle`, each of which resumes by itself.

    OUT/plan.json      protocol, settings, downloads and the estimate, stated before the start
    OUT/photos.json    the photos of a smaller protocol (--budget)
    OUT/run, OUT/results, OUT/page.md, OUT/NAME.zip
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from compoclip.config import (
    AtOnce,
    BenchmarkName,
    DataName,
    DeviceName,
    InputFolder,
    ModelName,
    OutputFolder,
    Seed,
    Shown,
    require_distinct,
)
from compoclip.console import duration, note, require_terminal
from compoclip.differences import require_same
from compoclip.errors import CompoclipError, UsageError, interruption_said, require
from compoclip.files import (
    content_hash,
    file_hash,
    free_bytes,
    only_writer,
    read_json_object,
    write_json,
    write_text,
)
from compoclip.methods.registry import recipe_card
from compoclip.programs.request import TrainRequest
from compoclip.programs.run import EvaluateOptions, evaluate, train
from compoclip.typed import Count, read_fields

if TYPE_CHECKING:
    from compoclip.benchmarks.sources import RemoteFile
    from compoclip.data.fingerprint import Fingerprint
    from compoclip.evaluation.published.protocols import TrainingPhotos
PLAN = "plan.json"
_FILES = {"annotations", "split_file"}
"""Options of benchmarks that name their files."""
_FEWEST, _MODELS = 500, 2  # photos of the smallest protocol; base and tuned model are measured
_PLAN: Mapping[str, Any] = {
    **dict.fromkeys(("name", "protocol", "recipe", "model", "table"), str),
    **dict.fromkeys(("captions", "images", "device"), str),
    **dict.fromkeys(("benchmarks", "folders", "base", "row"), list[str]),
    **dict.fromkeys(("photos", "of_photos", "save_every"), Count),
    **dict.fromkeys(("settings", "published", "downloads", "estimate", "speed"), dict[str, object]),
    "left_out": dict[str, str],
    "weights": str | None,  # not before they are downloaded
}


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Reproduce a table or figure of a paper, or one model: download, train, measure, compare.

    With --table or --figure every row of a paper's table is trained with every seed and measured on
    its columns. OUT/TABLE.md has the numbers beside the paper's. Without them one model is
    trained: OUT/page.md has the numbers, and OUT/NAME.zip is a bundle for compoclip verify. Both
    measure this machine, state downloads, time, memory and disk, and ask. Every stage resumes:
    repeat the command after an interruption. Benchmarks that cannot be fetched are measured if
    their files are in --data. Otherwise they are left out and named.

    Examples:
        compoclip reproduce --list
        compoclip reproduce fsc-clip --table 2 --out fsc --data /data
        compoclip reproduce fsc-clip --table 2 --scale world --out fsc-scenes
        compoclip reproduce fsc-clip --table 3a --model ViT-B-16-quickgelu:openai --out b16
            --captions captions.csv --images photos --on sugarcrepe --budget 6h
        compoclip reproduce fsc-clip --out fsc --data /data
        compoclip reproduce fsc-clip --out fsc-small --data /data --budget 6h

    Args:
        name: With --table or --figure a paper: fsc-clip, mosaic-clip, hard-positives or clic. Else
            a model: fsc-clip, fsc-clip-lora, negclip, hard-positives, clic or compo, or a YAML file
            of yours, as protocols.yaml of the package.
        list: Show the tables and figures of all papers, what each runs, and the files to get
            by hand.
        table: Number of a table, such as 2 or 3a.
        figure: Number of a figure.
        scale: full is the paper's data and models. world runs the same rows on drawn scenes with
            the bundled model, in minutes.
        seeds: Seeds of every row [default: the paper's].
        arms: Rows to run, by a part of their labels, besides the one that they are compared with.
        model: What every row starts from in place of the paper's model, named as for evaluate.
        max_steps: End every training run early, to try a command out.
        allow_partial: Measure the items that lie in --data, and fetch no benchmark; results are
            marked partial.
        jobs: Runs at once [default: one per core with --scale world, else 1].
        out: Folder for everything but the data. Tables in the same folder share equal runs.
        data: Data root, in the default layout; downloads go there.
        captions: Training data in place of the protocol's, in a form that train --data takes.
        images: Folder that image paths in --captions are relative to.
        on: Benchmarks to measure on in place of the protocol's, named as for data fetch.
        budget: Time for a smaller protocol, such as 6h or 90m. Of one model: as many photos as fit,
            fp16 on GPUs, few columns; its name states the photos and the precision. Of a table: the
            share of the training data with which all runs fit.
        device: cpu, cuda, cuda:N or mps; auto takes a GPU when there is one.
        url_base: A mirror, which replaces scheme and host of all addresses but the weights'.
        yes: Do not ask.
        json: Print the plan and the result as JSON.
    """

    name: Annotated[str, Shown("NAME", positional=True, hint="(required, but for --list)")] = ""
    list: bool = False
    table: str = ""
    figure: str = ""
    scale: str = "full"
    seeds: tuple[Seed, ...] = ()
    arms: tuple[str, ...] = ()
    model: ModelName = ""
    max_steps: Count | None = None
    allow_partial: bool = False
    jobs: AtOnce | None = None
    out: OutputFolder = Path("reproduced")
    data: Path = Path("data")
    captions: DataName | None = None
    images: InputFolder | None = None
    on: Annotated[tuple[BenchmarkName, ...], Shown("BENCHMARK ...")] = ()
    budget: str = ""
    device: DeviceName = "auto"
    url_base: str | None = None
    yes: bool = False
    json: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for a seed that is named twice: its runs would count twice."""
        require_distinct("seeds", self.seeds)

    @property
    def limit(self) -> float:
        """Return the seconds of --budget, 0 without it; raise UsageError for another form."""
        if not self.budget:
            return 0.0
        match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([mhd])", self.budget)
        if match is None or not float(match[1]):
            raise UsageError(f"--budget {self.budget}: write minutes, hours or days: 90m, 6h, 2d")
        return float(match[1]) * {"m": 60.0, "h": 3600.0, "d": 86400.0}[match[2]]


# --- The plan. ---


def make_plan(options: ReproduceOptions) -> dict[str, Any]:
    """Return everything that `reproduce` will do, JSON-ready, with what it costs.

    Raise UsageError for an unknown protocol, a wrong budget, unnamed training data, or where nobody
    can be asked, CompoclipError for named files that cannot be read, and for too little memory,
    disk or budget.
    """
    from compoclip.evaluation.published.protocols import protocol
    from compoclip.programs import estimate
    from compoclip.ranks import device_named

    chosen = protocol(options.name)
    data = chosen.data
    require_named(chosen.name, data, options)
    limit = options.limit
    usual = chosen.small if limit else chosen.benchmarks
    jobs, benchmarks, left_out = missing_files(options.on or usual, options.data)
    custom = options.captions is not None
    if not benchmarks:
        raise CompoclipError(f"nothing to measure on; {next(iter(left_out.values()), '')}")
    _require_readable(benchmarks, options)
    if not options.yes:
        require_terminal()
    device = device_named(options.device)  # with torch
    precision = estimate.usual_precision(device, bool(limit))
    published = {**recipe_card(chosen.recipe).defaults, **chosen.settings}
    note(f"measuring {chosen.model} with {chosen.recipe} on {device} for the estimate")
    batch = int(published["batch_size"])
    recipe, model, settings = chosen.recipe, chosen.model, chosen.settings
    speed = estimate.measure(recipe, model, settings, data.sentences, batch, device, precision)
    micro, memory = estimate.micro_batch(speed, batch, device)
    step = estimate.step_seconds(speed, batch, micro)
    images = published["epochs"] * step / batch  # seconds of training per photo
    evaluating = _MODELS * estimate.measuring_seconds(speed, benchmarks)
    number, name = data.number, chosen.name
    if limit:
        number, seconds = max(_FEWEST, batch), limit - evaluating
        if seconds < number * images:
            raise CompoclipError(
                f"--budget: training on {number} photos, the fewest, takes "
                f"{duration(number * images)}, and after measuring only "
                f"{duration(max(0.0, seconds))} are left; give more"
            )
        while 2 * number <= data.number and 2 * number * images <= seconds:
            number *= 2
        name = f"{name}-{number}-{precision}"
    folders = data.small if limit and number <= data.small_number else data.photos
    if not custom:
        jobs = {**training_jobs(data, folders, options.data), **jobs}
    steps = max(1, round(published["epochs"] * (number // batch)))
    sizes = [job.size for job in jobs.values()]
    weights = 4 * speed.parameters
    packed = max((job.size for job in jobs.values() if job.archive), default=0)
    plan = {
        "name": name,
        "protocol": chosen.name,
        **{k: getattr(chosen, k) for k in ("recipe", "model", "table", "base", "row")},
        "published": {name: published[name] for name in ("epochs", "batch_size", "lr")},
        "settings": {**chosen.settings, "precision": precision, "micro_batch": micro},
        "photos": number,
        "of_photos": data.number,
        "captions": options.captions or str(options.data / data.captions),
        "images": str(options.images or options.data / data.images),
        "folders": [] if custom else list(folders),
        "benchmarks": benchmarks,
        "left_out": left_out,
        "downloads": {
            target: {"bytes": job.size, "checked_by": job.checked_by}
            for target, job in jobs.items()
        },
        "device": str(device),
        "save_every": estimate.steps_between_states(step),
        "estimate": {
            "training_seconds": round(steps * step, 1),
            "evaluating_seconds": round(evaluating, 1),
            "memory_bytes": round(memory),
            "download_bytes": sum(sizes) + weights,
            "unknown_sizes": sizes.count(0),
            "disk_bytes": sum(sizes) + packed + 6 * weights,  # state, two models, the hub's copy
        },
        "speed": asdict(speed),
    }
    free = free_bytes(options.data)
    if free < (needed := plan["estimate"]["disk_bytes"]):
        raise CompoclipError(
            f"{options.data}: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
        )
    return plan


# --- Downloads. ---


def require_named(name: str, data: TrainingPhotos, options: ReproduceOptions) -> None:
    """Raise UsageError for training data that have to be got by hand and are not named."""
    if data.by_hand and not options.captions:
        raise UsageError(f"{name}: needs {data.by_hand}; name them: --captions and --images")


def _require_readable(benchmarks: Sequence[str], options: ReproduceOptions) -> None:
    """Raise for files that the user names and that cannot be read, before anything is measured."""
    from compoclip.data.sources.open import open_source

    if options.captions:
        open_source(options.captions, images=options.images)
    here = tuple(spec for spec in benchmarks if _names_files(spec, options.data))
    if here:
        EvaluateOptions(on=here, data=options.data).benchmarks()


def _names_files(spec: str, root: Path) -> bool:
    """Return whether a value of --on says where its files lie."""
    from compoclip.benchmarks.targets import parse_targets

    target = parse_targets([spec], root)[0]
    return bool(target.root != root or target.images or target.options.keys() & _FILES)


def missing_files(
    specs: Sequence[str], root: Path
) -> tuple[dict[str, RemoteFile], list[str], dict[str, str]]:
    """Return what to fetch, the benchmarks to measure, and why others are left out.

    specs: as --on takes them. Those that name their files are measured where these lie.
    """
    from compoclip.benchmarks.check import check
    from compoclip.benchmarks.fetch import find_missing
    from compoclip.benchmarks.names import without_suites
    from compoclip.benchmarks.targets import parse_targets

    jobs: dict[str, RemoteFile] = {}
    benchmarks: list[str] = []
    left_out: dict[str, str] = {}
    for spec in without_suites(specs):
        targets = parse_targets([spec], root)
        target = targets[0]
        if len(targets) > 1 or _names_files(spec, root):
            benchmarks.append(spec)
            continue
        with suppress(CompoclipError):
            if check(target.spec, root, options=target.options).complete:
                benchmarks.append(spec)
                continue
        try:
            missing = find_missing([target.spec], root)
        except CompoclipError as error:
            left_out[spec] = str(error).removeprefix(f"{target.spec}: ")
            continue
        if missing.by_hand:
            left_out[spec] = missing.by_hand[0]
            continue
        benchmarks.append(spec)
        jobs |= {job.target: job for job in missing.jobs}
    return jobs, benchmarks, left_out


def present(specs: Sequence[str], root: Path) -> tuple[list[str], dict[str, str]]:
    """Return the benchmarks of which some items lie below `root`, and why others are left out."""
    from compoclip.benchmarks.names import without_suites

    benchmarks: list[str] = []
    left_out: dict[str, str] = {}
    for spec in without_suites(specs):
        try:
            EvaluateOptions(on=(spec,), data=root, allow_partial=True).benchmarks()
        except CompoclipError as error:
            left_out[spec] = str(error)
        else:
            benchmarks.append(spec)
    return benchmarks, left_out


def training_jobs(
    data: TrainingPhotos, folders: Sequence[str], root: Path
) -> dict[str, RemoteFile]:
    """Return what is missing of the training data, not whole, or not the official file."""
    from compoclip.benchmarks.sources import shared

    jobs: dict[str, RemoteFile] = {}
    for target in (data.captions, *folders):
        source = shared()[target]
        place = root / target
        if source.archive:
            whole = place.is_dir() and not any(place.parent.glob(f"{place.name}.*"))
        else:
            whole = place.is_file() and source.md5 in ("", file_hash(place, "md5"))
        jobs |= {} if whole else {target: source}
    return jobs


def fetch_missing(
    specs: Sequence[str],
    photos: Sequence[tuple[TrainingPhotos, Sequence[str]]],
    root: Path,
    get: Callable[[RemoteFile], None],
) -> None:
    """Fetch what benchmarks and training data need.

    photos: training data, and which of their folders. get: fetches one file.
    """
    done: set[str] = set()
    while True:  # once more for photos that only the annotations could name
        jobs = missing_files(specs, root)[0]
        for data, folders in photos:
            jobs = {**training_jobs(data, folders, root), **jobs}
        left = [job for target, job in jobs.items() if target not in done]
        for job in left:
            get(job)
            done.add(job.target)
        if not left:
            return


def verified_weights(model: str) -> str:
    """Download the weights that a model names; return how the file was verified.

    Raise CompoclipError for a file other than the hub announces.
    """
    import open_clip
    from huggingface_hub import try_to_load_from_cache

    from compoclip.models.checkpoint import load_model
    from compoclip.models.formats.open_clip import WEIGHT_FILES

    load_model(model)
    name, _, tag = model.partition(":")
    repository = tag if name == "hf-hub" else ""
    if name in open_clip.list_models():
        repository = str(open_clip.get_pretrained_cfg(name, tag).get("hf_hub", "")).rstrip("/")
    for file in WEIGHT_FILES:
        place = try_to_load_from_cache(repository, file) if repository else None
        if isinstance(place, str):
            digest = Path(place).resolve().name  # the hub's name of a large file is its SHA-256
            if len(digest) == 64 and file_hash(Path(place), "sha256") != digest:
                raise CompoclipError(f"{place}: not the file that the hub has; delete it")
            return f"sha256 {digest}" if len(digest) == 64 else "nothing known"
    return "nothing known"


# --- The stages. ---


def reproduce(
    options: ReproduceOptions,
    agree: Callable[[Mapping[str, Any]], bool],
    get: Callable[[RemoteFile], None],
) -> Path | None:
    """Run the stages that are not done; return the bundle.

    agree: shows the plan and returns whether to start (not called when resuming); None if it said
    no. get: fetches one file. Raise UsageError as `make_plan`, and when OUT holds another protocol.
    """
    from compoclip.evaluation.published.protocols import protocol

    training_photos = protocol(options.name).data
    from compoclip.data.fingerprint import FILE, Fingerprint, make_once
    from compoclip.evaluation.bundle import write_bundle
    from compoclip.evaluation.plan_page import plan_page
    from compoclip.evaluation.results import load_results

    out = options.out
    with only_writer(out, folder=True):
        inputs = _inputs(options)
        if (out / PLAN).is_file():
            plan = read_json_object(out / PLAN, damaged="delete it to plan anew")
            differences = Fingerprint.load(out).differences(inputs)
            require_same(out, differences, f"holds {plan.get('name')}")
            read_fields(plan, _PLAN, str(out / PLAN), "delete it to plan anew", others=False)
            note(f"{out}: resumes {plan['name']}")
        else:
            plan = make_plan(options)
            if not agree(plan):
                return None
            inputs.save(out)
            write_json(out / PLAN, plan)
        name = plan["name"]
        require(name == Path(name).name, name, "no name for a file; rename the protocol")
        if "weights" not in plan:
            plan["weights"] = verified_weights(plan["model"])
            write_json(out / PLAN, plan)
        photos = [] if options.captions else [(training_photos, plan["folders"])]
        fetch_missing(plan["benchmarks"], photos, options.data, get)
        bundle = out / f"{name}.zip"
        benchmarks = tuple(plan["benchmarks"])
        measuring = EvaluateOptions(
            on=benchmarks, data=options.data, out=out / "results", device=plan["device"]
        )
        measuring.benchmarks()  # faults of the data are found before training
        values = {
            "save_every": plan["save_every"],
            **plan["settings"],
            "data": _training_data(plan, out),
            "images": Path(plan["images"]),
            "model": plan["model"],
            "out": out / "run",
            "device": plan["device"],
            "workers": "auto",
            "resume": (out / "run").is_dir(),
        }
        request = TrainRequest.of(plan["recipe"], values)
        config = request.text(repeats=True)
        with interruption_said():
            _, summary = train(request.options, request.composed(), config=config)
        tuned = str(out / "run" / "model")
        evaluate(measuring, {"base": plan["model"], plan["recipe"]: tuned})
        text = plan_page(plan, load_results(out / "results"), summary.seconds)
        write_text(out / "page.md", text)
        run, results = out / "run", out / "results"
        parts = {"plan": out / PLAN, "run": run / FILE, "results": results}
        make_once(
            bundle,
            Fingerprint({name: content_hash(part) for name, part in parts.items()}),
            lambda: write_bundle(run, results, bundle, [plan["table"]], plan),
        )
    return bundle


def _inputs(options: ReproduceOptions) -> Fingerprint:
    """Return all options that decide what is planned; another machine may go on."""
    from compoclip.data.fingerprint import Fingerprint
    from compoclip.evaluation.published.protocols import protocol

    values = {name: getattr(options, name) for name in ("captions", "on", "budget")}
    folders = {name: str(getattr(options, name) or "") for name in ("data", "images")}
    return Fingerprint({"protocol": asdict(protocol(options.name)), **values, **folders})


def _training_data(plan: Mapping[str, Any], out: Path) -> str:
    """Return what to train on; write the selection of a smaller protocol."""
    if plan["name"] == plan["protocol"]:
        return str(plan["captions"])
    from compoclip.data.fingerprint import Fingerprint, make_once
    from compoclip.data.sources.open import Request, open_source, write_selection

    path, images = out / "photos.json", Path(plan["images"])

    def select() -> None:
        ids = [str(value) for value in open_source(plan["captions"], images=images).column("id")]
        inside = tuple(f"{PurePosixPath(folder).name}/" for folder in plan["folders"]) or ""
        able = [name for name in ids if name.startswith(inside)]
        order = sorted(able, key=lambda name: hashlib.blake2b(name.encode()).digest())
        without = sorted({*ids} - {*order[: plan["photos"]]})
        if len(ids) - len(without) < plan["photos"]:
            raise CompoclipError(f"{plan['captions']}: fewer than {plan['photos']} photos")
        because = f"photo that {plan['name']} leaves out"
        write_selection(path, Request(plan["captions"], images=images), without, because)

    names = ("name", "captions", "images", "folders", "photos")
    inputs = {name: plan[name] for name in names}
    inputs["content of captions"] = content_hash(Path(plan["captions"]))
    make_once(path, Fingerprint(inputs), select)
    return str(path)
