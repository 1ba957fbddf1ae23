"""Cases and sets of a benchmark: image references, texts, and which match. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from compoclip.benchmarks.sources import RemoteFile, document, shared
from compoclip.typed import Natural

if TYPE_CHECKING:
    from PIL.Image import Image

    from compoclip.archives import Members


class Form(StrEnum):
    """The name of a form of item; `evaluation.forms` holds the object that scores and judges it.

    CHOOSE_TEXT: one image, K texts. CHOOSE_IMAGE: one text, K images. GROUP: two images and two
    texts, image i matches text i. TRIPLE: one image, positive texts 0 and 1, negative text 2.
    HALF_TRUTH: one image, a short true text 0, text 1 which adds something true to it, text 2
    which adds something false. TWO_TRUE: one image, true texts 0 and 1, false texts 2 and 3.
    TEXT_ONLY: no image, the three texts of a TRIPLE. BINARY: one image, one text that is true of it
    (`truth` 1) or not (0); all cases of a benchmark or none.
    RETRIEVAL, CLASSIFICATION, PROBE, JUDGED: forms of the items of such sets, not of cases.
    """

    CHOOSE_TEXT = "choose-text"
    CHOOSE_IMAGE = "choose-image"
    GROUP = "group"
    TRIPLE = "triple"
    HALF_TRUTH = "half-truth"
    TWO_TRUE = "two-true"
    TEXT_ONLY = "text-only"
    BINARY = "binary"
    RETRIEVAL = "retrieval"
    CLASSIFICATION = "classification"
    PROBE = "probe"
    JUDGED = "judged"


TWO_TRUE = (Form.TRIPLE, Form.TEXT_ONLY, Form.HALF_TRUTH, Form.TWO_TRUE)
"""The forms with two true texts, before false ones."""


class TiePolicy(StrEnum):
    """STRICT: a tie is wrong. FIRST: argmax of the stored order wins."""

    STRICT = "strict"
    FIRST = "first"


@dataclass(frozen=True, slots=True)
class ImageRef:
    """An image file and, if the benchmark crops it, a pixel box (left, upper, right, lower).

    member: place of the image in the archive or table at `path`, see `archives.Members`; "" for an
    image file. squash: resize both sides to the model's size, whatever the shape. mirror: exchange
    left and right after the crop. upright: turn as the EXIF orientation says, before the crop: for
    a user's photos alone.
    """

    path: Path
    box: tuple[float, float, float, float] | None = None
    member: str = ""
    squash: bool = False
    mirror: bool = False
    upright: bool = False

    @property
    def photo(self) -> str:
        """Return the uncropped image as text: its path, and "@member" in an archive or table."""
        return f"{self.path}@{self.member}" if self.member else str(self.path)

    def stored(self, members: Members) -> Path | bytes:
        """Return the file, or the bytes of the member; raise CompoclipError for an absent one."""
        return members(self.path, self.member) if self.member else self.path

    def decoded(self, members: Members) -> Image:
        """Return the image in RGB and in its size, upright, cropped and mirrored as stated.

        Raises CompoclipError for a missing or damaged image.
        """
        from PIL import ImageOps

        from compoclip.data.decode import decode

        stored = self.stored(members)
        image = decode(stored, box=self.box, name=self.photo, upright=self.upright)
        return ImageOps.mirror(image) if self.mirror else image


@dataclass(frozen=True, slots=True)
class Case:
    """One item. `truth` is the index of the right text or image for the choice forms, else 0.

    `subtask` is the benchmark's own part (file, phenomenon); `labels` hold finer groupings, e.g.
    {"relation": "left of"}; aggregation may use them. For BINARY, `truth` is 1 or 0.
    """

    id: str
    form: Form
    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    subtask: str
    truth: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def sides(self) -> tuple[list[int], list[int]]:
        """Return the places of true and of false texts; no false ones where images are chosen, and
        of statements."""
        if self.form in TWO_TRUE:
            return [0, 1], list(range(2, len(self.texts)))
        if self.form in (Form.CHOOSE_TEXT, Form.GROUP):
            return [self.truth], [k for k in range(len(self.texts)) if k != self.truth]
        return list(range(len(self.texts))), []


# --- What a benchmark holds: cases, or a set for retrieval, classification or a probe. ---

ZERO_SHOT = "zero_shot"
"""The sub-task of a classification set in which every image has one label."""
CLASS_LABEL = "class"
"""The label of its items that names the true class."""


class Listed(NamedTuple):
    """The items that the annotation files list, photos there or not: one entry each."""

    subtasks: Sequence[str] = ()
    labels: Sequence[Mapping[str, str]] = ()
    truth: Sequence[int] = ()


class Cases(tuple[Case, ...]):
    """Cases, in the order of the files."""

    __slots__ = ()

    @property
    def cases(self) -> Cases:
        """Return the cases; () for other sets."""
        return self

    @property
    def forms(self) -> tuple[Form, ...]:
        """Return the forms of the items, each once."""
        return tuple(dict.fromkeys(case.form for case in self))

    @property
    def images(self) -> tuple[ImageRef, ...]:
        """Return the images, case by case."""
        return tuple(ref for case in self for ref in case.images)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts, case by case."""
        return tuple(text for case in self for text in case.texts)

    @property
    def listed(self) -> Listed:
        """Return the sub-task, labels and truth of every case."""
        return Listed(
            [case.subtask for case in self],
            [case.labels for case in self],
            [case.truth for case in self],
        )

    def counts(self) -> dict[str, int]:
        """Return the number of items by sub-task."""
        return dict(Counter(case.subtask for case in self))

    def without(self, absent: Callable[[ImageRef], bool]) -> Cases:
        """Return the cases without an image for which `absent` holds."""
        return Cases(case for case in self if not any(map(absent, case.images)))


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Image-text retrieval: `pairs` are (image index, text index) that match.

    Its two sub-tasks are "i2t" (hit: any matching text among the k best) and "t2i", with the
    metrics "r1", "r5" and "r10".
    """

    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    cases: ClassVar[Cases] = Cases()
    forms: ClassVar[tuple[Form, ...]] = (Form.RETRIEVAL,)
    listed: ClassVar[Listed] = Listed()

    def counts(self) -> dict[str, int]:
        """Return the number of queries by sub-task."""
        return {"i2t": len(self.images), "t2i": len(self.texts)}

    def without(self, absent: Callable[[ImageRef], bool]) -> Retrieval:
        """Return the set without the images for which `absent` holds, and without the texts whose
        last image these are."""
        images = [i for i, image in enumerate(self.images) if not absent(image)]
        image_at = {old: new for new, old in enumerate(images)}
        pairs = [(image, text) for image, text in self.pairs if image in image_at]
        texts = sorted({text for _, text in pairs})
        text_at = {old: new for new, old in enumerate(texts)}
        return Retrieval(
            images=tuple(self.images[i] for i in images),
            texts=tuple(self.texts[t] for t in texts),
            pairs=tuple((image_at[image], text_at[text]) for image, text in pairs),
        )


@dataclass(frozen=True, slots=True)
class JudgedRetrieval(Retrieval):
    """A gallery in which nobody knows the right images: a judge is asked about the best of a text.

    `pairs` is empty. questions: per text, one whose right answer is yes, and one whose right answer
    is no. The only sub-task is "negated", with the metrics "both" and "named" (the first question).
    """

    questions: tuple[tuple[str, str], ...] = ()
    forms: ClassVar[tuple[Form, ...]] = (Form.JUDGED,)

    def counts(self) -> dict[str, int]:
        """Return the number of texts."""
        return {"negated": len(self.texts)}

    def without(self, absent: Callable[[ImageRef], bool]) -> JudgedRetrieval:
        """Return the set without the images for which `absent` holds."""
        return replace(self, images=tuple(image for image in self.images if not absent(image)))


@dataclass(frozen=True, slots=True)
class Classification:
    """Zero-shot classification: one label per image, several prompts per class to be averaged.

    metric: "accuracy" or "mean-per-class" (mean recall of the classes that have an image). The only
    sub-task is "zero_shot", with the metric "accuracy"; its items carry the label "class", so that
    mean-per-class is an aggregate with macro_by="class". metric "auc": of two classes, the area
    under the ROC curve of the probability of class 1, the softmax over 100 * cosine.

    metric "map11": several classes may be true of an image. tags: all of them, image by image
    (`labels` is then empty). Every class is a sub-task whose items are all images, with the metrics
    "ap11" and "ap11_devkit": 11-point average precision of the images by the probability of the
    class, as the ELEVATER toolkit and as the VOC devkit compute it; chance is its mean over
    random orders of the images.
    """

    images: tuple[ImageRef, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    prompts: tuple[tuple[str, ...], ...]
    metric: str = "accuracy"
    tags: tuple[tuple[int, ...], ...] = ()
    cases: ClassVar[Cases] = Cases()
    forms: ClassVar[tuple[Form, ...]] = (Form.CLASSIFICATION,)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the prompts, class by class."""
        return tuple(text for prompts in self.prompts for text in prompts)

    @property
    def listed(self) -> Listed:
        """Return the labelled images, each with its class."""
        labels = [{CLASS_LABEL: self.classes[label]} for label in self.labels]
        return Listed([ZERO_SHOT for _ in labels], labels, [0 for _ in labels])

    def counts(self) -> dict[str, int]:
        """Return the number of images by sub-task."""
        return dict.fromkeys(self.classes if self.tags else (ZERO_SHOT,), len(self.images))

    def rules(self) -> dict[str, Aggregate]:
        """Return the aggregates of the set; the headline is called like its metric.

        Mean-per-class only where no two classes share a name.
        """
        one = (ZERO_SHOT,)
        if self.metric == "map11":
            devkit = Aggregate(self.classes, metric="ap11_devkit")
            return {"map11": Aggregate(self.classes), "map11_devkit": devkit}
        if self.metric == "auc":
            return {"auc": Aggregate(one), "accuracy": Aggregate(one, metric="accuracy")}
        rules = {"accuracy": Aggregate(one)}
        if len(set(self.classes)) == len(self.classes):
            rules["mean-per-class"] = Aggregate(one, macro_by=CLASS_LABEL)
        return rules

    def without(self, absent: Callable[[ImageRef], bool]) -> Classification:
        """Return the set without the images for which `absent` holds, with all classes."""
        present = [k for k, image in enumerate(self.images) if not absent(image)]
        return replace(
            self,
            images=tuple(self.images[k] for k in present),
            labels=tuple(self.labels[k] for k in present if self.labels),
            tags=tuple(self.tags[k] for k in present if self.tags),
        )


PROBED = "probe"
"""The sub-task of a set on which a linear probe is measured."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A linear probe: a classifier of image features, fitted to photos of two training sets.

    test: the photos that are measured. validation: those that choose the strength of the penalty,
    at a classifier of the photos of `train`. All three have the same classes and no prompts. The
    only sub-task is "probe", with the metric "accuracy" and the label "class".
    """

    test: Classification
    train: Classification
    validation: Classification
    texts: ClassVar[tuple[str, ...]] = ()
    cases: ClassVar[Cases] = Cases()
    forms: ClassVar[tuple[Form, ...]] = (Form.PROBE,)

    @property
    def images(self) -> tuple[ImageRef, ...]:
        """Return the images of all three sets, the measured ones first."""
        return (*self.test.images, *self.train.images, *self.validation.images)

    @property
    def listed(self) -> Listed:
        """Return the measured images, each with its class."""
        listed = self.test.listed
        return listed._replace(subtasks=[PROBED for _ in listed.labels])

    def counts(self) -> dict[str, int]:
        """Return the number of measured images."""
        return {PROBED: len(self.test.images)}

    def without(self, absent: Callable[[ImageRef], bool]) -> Probe:
        """Return the probe without the images for which `absent` holds, with all classes."""
        sets = (part.without(absent) for part in (self.test, self.train, self.validation))
        return Probe(*sets)


Content = Cases | Retrieval | Classification | Probe


@dataclass(frozen=True)
class Aggregate:
    """A named rule that turns sub-task scores into one number: a tree of means.

    parts: sub-task names or nested aggregates. weighting: "macro" = plain mean of the parts,
    "micro" = mean over all items of the parts. macro_by: pool the cases of the parts (sub-task
    names only), average inside each value of that case label (e.g. "relation"), then take the
    plain mean over the values, leaving out values in `exclude` and values with fewer than
    `min_group` cases. metric: which metric to average; None = that of the enclosing aggregate,
    and at the top the main metric of the form.
    """

    parts: tuple[str | Aggregate, ...]
    weighting: Literal["macro", "micro"] = "macro"
    macro_by: str | None = None
    min_group: Natural = 1
    exclude: tuple[str, ...] = ()
    metric: str | None = None

    def __post_init__(self) -> None:
        # Results hold rules, and equal ones are written alike.
        object.__setattr__(self, "exclude", tuple(sorted(self.exclude)))

    def nested(self) -> tuple[Aggregate, ...]:
        """Return the parts as aggregates; a sub-task is the mean of its items."""
        return tuple(
            Aggregate((part,), weighting="micro") if isinstance(part, str) else part
            for part in self.parts
        )

    def subtasks(self) -> frozenset[str]:
        """Return the names of all sub-tasks that the tree needs."""
        parts = ({part} if isinstance(part, str) else part.subtasks() for part in self.parts)
        return frozenset().union(*parts)

    def by_label(self) -> bool:
        """Return whether the tree uses labels of items, and so may leave out items."""
        return self.macro_by is not None or any(
            not isinstance(part, str) and part.by_label() for part in self.parts
        )


@dataclass
class Benchmark:
    """A loaded benchmark, ready to be encoded and scored.

    name: id such as "sugarcrepe". known_as: that id, where a user gave another name. content:
    cases, or one retrieval or classification set. ties: the official tie policy, by sub-task
    ("" = all). aggregates: rule name -> how to combine sub-task scores. headline: the aggregate to
    quote. skills: sub-task -> skill for the models x skills table. data_hash: over the annotation
    files. expected: items the official files hold, by sub-task, where known (for retrieval the
    queries: images for "i2t", texts for "t2i").
    left_out: reason -> rows of the files that the format asks to leave out. Absent images are not
    in here: the reader yields them, `present` splits them off.
    joint: metric name -> case label. Cases of a sub-task that share a value of the label form a
    group, and the metric is the share of groups of which all cases are right by their main metric.
    tuned_on: for BINARY, sub-task -> the sub-task whose cases decide its threshold; these get no
    score. protocol: version of the reader, raised when its numbers change. assumed: what the reader
    took for granted about the data, in whole lines.
    """

    name: str
    content: Content
    data_hash: str
    ties: dict[str, TiePolicy] = field(default_factory=dict)
    skills: dict[str, str] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)
    aggregates: dict[str, Aggregate] = field(default_factory=dict)
    headline: str = "micro"
    left_out: dict[str, int] = field(default_factory=dict)
    joint: dict[str, str] = field(default_factory=dict)
    tuned_on: dict[str, str] = field(default_factory=dict)
    protocol: int = 1
    known_as: str = ""
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.content) is tuple:  # cases as people write them
            self.content = Cases(self.content)

    @property
    def totals(self) -> dict[str, int]:
        """Return the items of the full benchmark by sub-task, whether they are there or not."""
        counts = self.content.counts()
        parts = {**counts, **self.expected}
        return {part: max(counts.get(part, 0), self.expected.get(part, 0)) for part in parts}

    @property
    def scored(self) -> list[str]:
        """Return the sub-tasks that get a score."""
        return [part for part in self.totals if part not in self.tuned_on.values()]


# --- What is known about a benchmark without reading a single file. ---


@dataclass(frozen=True)
class Meta:
    """Facts about a benchmark, for listings and for people who must obtain it.

    id: the name to load it by. title: its published name. source: where the official files come
    from, in words. licence: of the annotations. access: steps needed to get the files; "open" for
    none. files: annotation files under the data root, or patterns each of which must match a file.
    images: image folders under it. parts: sub-tasks, or named sets of a family, that a spec
    `id:part` may select. chance: expected score of guessing, "sub-task" or "sub-task/metric" ->
    value; sub-task "" stands for all. skills: sub-task -> skill of `SKILLS`. expected: sub-task ->
    items of the official files. hashes: file under the root -> blake2b (128 bit) of the official
    bytes, if known. family: a spec must name exactly one part. archives: patterns of archives under
    the root, one of which may stand for all the files. requires: option that a target must state.
    status: "open"; "partly gated" or "gated", behind terms or a form; "partly dead" or "gone".
    part_folders: set of a family -> its folder under the root, if that has another name. optional:
    files that are read if they are there. elsewhere: file or pattern -> another place below the
    root, tried first. remote: sources of the files and image folders that need no permission.
    by_others: whether others than the user and this project wrote the texts.
    """

    id: str
    title: str
    citation: str
    source: str
    licence: str
    access: str
    files: tuple[str, ...]
    images: tuple[str, ...]
    parts: tuple[str, ...]
    chance: Mapping[str, float]
    skills: Mapping[str, str]
    expected: Mapping[str, int] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    family: bool = False
    archives: tuple[str, ...] = ()
    requires: str = ""
    status: str = "open"
    part_folders: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    remote: tuple[RemoteFile, ...] = ()
    by_others: bool = True

    @property
    def sources(self) -> dict[str, RemoteFile]:
        """Return the files and image folders that can be fetched, with their sources.

        Sources that several benchmarks share (`sources.shared`) need no mention in `remote`.
        """
        remote = {**shared(), **{source.target: source for source in self.remote}}
        return {
            target: remote[target] for target in (*self.files, *self.images) if target in remote
        }

    def place(self, root: Path, file: str) -> str | None:
        """Return the place below `root` of a file (or of a file of a pattern), or None."""
        for place in (self.elsewhere.get(file, file), file):
            if any(root.glob(place)) if "*" in place else (root / place).is_file():
                return place
        return None

    def of_set(self, part: str, paths: Iterable[str]) -> tuple[str, ...]:
        """Return the `paths`, files or folders, that belong to one set of a family."""
        folder = self.part_folders.get(part, part)
        return tuple(
            path.replace("/NAME", f"/{part}")
            for path in paths
            if path.startswith(f"{folder}/") or "/NAME/" in f"{path}/"
        )

    @property
    def items(self) -> int | None:
        """Return the number of official items; None if unknown or if it depends on the set."""
        return None if self.family else sum(self.expected.values()) or None

    @property
    def size(self) -> int:
        """Return the bytes of all sources of known size, archives packed."""
        return sum(source.size for source in self.sources.values())

    def to_json(self) -> dict[str, object]:
        """Return the facts for listings, ready for JSON."""
        sources = self.sources

        def located(target: str) -> dict[str, object]:
            source = sources.get(target) or RemoteFile(target, "")
            facts = {name: getattr(source, name) or None for name in ("url", "size", "md5")}
            return {"path": target, "blake2b": self.hashes.get(target), **facts}

        plain = ("id", "title", "citation", "items", "family", "requires", "licence", "status")
        return {
            **{name: getattr(self, name) for name in (*plain, "access", "source", "size")},
            **{name: list(getattr(self, name)) for name in ("parts", "archives", "optional")},
            "expected": dict(self.expected),
            "files": [located(file) for file in self.files],
            "images": [located(folder) for folder in self.images],
        }


SKILLS: Mapping[str, str] = MappingProxyType(document()["_skills"])
"""Skill of the models x skills table -> its description; every sub-task maps to one of these."""


# --- What images and texts are called in results and audits: the same on every machine. ---

UPRIGHT, MIRRORED = "#upright", "#mirrored"  # ends of the names of images


def image_key(ref: ImageRef) -> str:
    """Name of an image in results: `ImageRef.photo`, "#left,upper,right,lower" when cropped,
    UPRIGHT and MIRRORED; `report.looks.ref_of_key` reads it."""
    box = "" if ref.box is None else f"#{','.join(f'{value:g}' for value in ref.box)}"
    upright = UPRIGHT if ref.upright else ""
    mirrored = MIRRORED if ref.mirror else ""
    return f"{ref.photo}{box}{upright}{mirrored}"


def image_names(refs: Sequence[ImageRef]) -> list[str]:
    """Names of a gallery's images that stay the same on another machine or when others are absent.

    Folder and file name, with the box, and "(2)" for a second image of that name.
    """
    counts: Counter[str] = Counter()
    names = []
    for ref in refs:
        name = f"{ref.path.parent.name}/{image_key(replace(ref, path=Path(ref.path.name)))}"
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return names


def text_names(content: Retrieval) -> dict[int, str]:
    """Text index -> name, of all texts with an image: the first such image (`image_names`) and the
    place among that image's texts."""
    names = image_names(content.images)
    place: Counter[int] = Counter()
    name_by_text: dict[int, str] = {}
    for image, text in content.pairs:
        name_by_text.setdefault(text, f"{names[image]} text {place[image]}")
        place[image] += 1
    return name_by_text


def present(benchmark: Benchmark) -> tuple[Content, tuple[str, ...]]:
    """Return the content whose images all exist, and the sorted names of the absent images.

    Every distinct path is looked up once, an archive as a whole.
    """
    content = benchmark.content
    distinct = dict.fromkeys(content.images)
    missing = {path for path in {ref.path for ref in distinct} if not path.is_file()}
    if not missing:
        return content, ()
    absent = sorted({ref.photo for ref in distinct if ref.path in missing})
    return content.without(lambda ref: ref.path in missing), tuple(absent)
