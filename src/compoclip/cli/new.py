"""`compoclip new KIND NAME`: a working file of one's own to start from, and a test beside it."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from compoclip import own
from compoclip.cli.options import parse
from compoclip.console import emit_json
from compoclip.errors import CompoclipError, UsageError
from compoclip.files import unwritable, write_text

_METHOD = '''"""@name@: a training method of my own.

compoclip train @ident@.py --data DATA --out RUN
"""

from compoclip.losses import Features, Layout, Role, negclip_loss
from compoclip.methods import NEGATIVES, CaptionPlan, LossTerm, Method, Optim, recipe

OPTIM = Optim(lr=1e-6)


def margin_loss(features: Features, layout: Layout):
    """How far each negative comes closer than 0.2 to the score of its image's caption."""
    # Texts are one list: layout.owner has the image of each, layout.role why it is there.
    cosine = (features.image[layout.owner] * features.text).sum(-1)  # (T,)
    caption, negative = layout.role == Role.CAPTION, layout.role == Role.NEGATIVE
    right = cosine.new_zeros(layout.images)
    right = right.index_put((layout.owner[caption],), cosine[caption])  # (B,)
    gaps = 0.2 - right[layout.owner[negative]] + cosine[negative]
    return gaps.relu().sum() / max(1, len(gaps))  # 0 in a batch without negatives


@recipe
def @ident@(*, margin_weight: float = 0.5, optim: Optim = OPTIM) -> Method:
    """NegCLIP with a margin between each caption and its negatives.

    Args:
        margin_weight: Weight of the loss with the margin.
        optim: Optimiser and schedule.
    """
    return Method(
        name="@name@",
        plan=CaptionPlan(rewrites=("negclip", "replace")),  # compoclip rewrites lists them
        losses=(
            LossTerm("negclip", negclip_loss, reads=NEGATIVES),
            LossTerm("margin", margin_loss, weight=margin_weight, reads=NEGATIVES),
        ),
        optim=optim,
    )
'''
_TRAINS = """

def test_it_trains(tmp_path):
    rows = ["image,caption"]
    for colour in ("red", "blue", "green", "white"):
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{colour}.png")
        rows.append(f"{colour}.png,a {colour} star above a black mug")
    data = tmp_path / "data.csv"
    data.write_text("\\n".join(rows))
    few = {"epochs": 2, "batch_size": 4, "warmup": 0, "device": "cpu", "crop": False}
    tuned = compoclip.train("bundled", @what@, data, out=tmp_path / "run", **few)
    made = tuned.loaded.provenance
    assert made["run"]["steps"] == 2
    assert "@ident@.py" in made["sources"]  # a changed file is noticed on --resume
"""
_METHOD_TEST = '''"""What @ident@.py promises. Run with: pytest test_@ident@.py"""

from pathlib import Path

from PIL import Image

import compoclip
from compoclip.methods import load_recipe

FILE = str(Path(__file__).with_name("@ident@.py"))


def test_its_parameters_reach_the_losses():
    method = load_recipe(FILE)(margin_weight=2.0)
    assert method.name == "@name@"
    assert {term.name: term.weight for term in method.losses} == {"negclip": 1.0, "margin": 2.0}
''' + _TRAINS.replace("@what@", "FILE")
_LOSS = '''"""@name@: a loss of my own, as a term that any method takes.

compoclip train negclip --terms +./@ident@.py --set terms.@name@.weight=0.5 --data DATA --out RUN
"""

from compoclip.losses import Features, Layout, Role
from compoclip.methods import NEGATIVES, LossTerm


def @ident@(features: Features, layout: Layout):
    """How far each negative comes closer than 0.2 to the score of its image's caption."""
    # Texts are one list: layout.owner has the image of each, layout.role why it is there.
    cosine = (features.image[layout.owner] * features.text).sum(-1)  # (T,)
    caption, negative = layout.role == Role.CAPTION, layout.role == Role.NEGATIVE
    right = cosine.new_zeros(layout.images)
    right = right.index_put((layout.owner[caption],), cosine[caption])  # (B,)
    gaps = 0.2 - right[layout.owner[negative]] + cosine[negative]
    return gaps.relu().sum() / max(1, len(gaps))  # 0 in a batch without negatives


# reads: the texts beside captions without which it means nothing. needs_local=True asks for
# features of patches and tokens.
TERM = LossTerm("@name@", @ident@, weight=1.0, reads=NEGATIVES)
'''
_LOSS_TEST = '''"""What @ident@.py promises. Run with: pytest test_@ident@.py"""

from pathlib import Path

import torch
from PIL import Image
from torch.nn.functional import normalize

import compoclip
from compoclip.losses import Features, Layout, Role
from compoclip.methods import load_recipe
from compoclip.methods.compose import compose, loss_named

FILE = str(Path(__file__).with_name("@ident@.py"))
OWNERS, ROLES = [0, 1, 0, 0], [Role.CAPTION, Role.CAPTION, Role.NEGATIVE, Role.NEGATIVE]


def batch(texts):
    """Random features of two images, and of as many texts, with gradients."""
    draw = torch.Generator().manual_seed(0)
    image = normalize(torch.randn(2, 8, generator=draw), dim=-1).requires_grad_()
    text = normalize(torch.randn(texts, 8, generator=draw), dim=-1).requires_grad_()
    owner, role = torch.tensor(OWNERS[:texts]), torch.tensor([int(r) for r in ROLES[:texts]])
    layout = Layout(owner, role, torch.full((texts,), -1), images=2)
    return Features(image, text, torch.tensor(10.0)), layout


def test_it_is_what_a_plain_loop_says():
    features, layout = batch(4)
    score = (features.image @ features.text.T).tolist()
    gaps = [max(0.0, 0.2 - score[0][0] + score[0][k]) for k in (2, 3)]
    loss = loss_named(FILE).loss(features, layout)
    assert abs(loss.item() - sum(gaps) / 2) < 1e-6
    loss.backward()
    assert features.image.grad.isfinite().all()


def test_it_is_zero_without_a_negative():
    loss = loss_named(FILE).loss(*batch(2))
    assert loss.item() == 0
    loss.backward()  # and still has a gradient
''' + _TRAINS.replace("@what@", 'compose(load_recipe("negclip")(), terms=[f"+{FILE}"])')
_REWRITE = '''"""@name@: a caption rewrite of my own.

compoclip rewrite "a red star above a blue mug" --rewrites ./@ident@.py
compoclip train negclip --texts +./@ident@.py --data DATA --out RUN
"""

from dataclasses import dataclass

from compoclip.rewrites import Edit, Refused, Rewritten

OPPOSITES = {"above": "below", "left": "right", "inside": "outside", "with": "without"}
OPPOSITES |= {new: old for old, new in OPPOSITES.items()}


@dataclass(frozen=True)
class @Class@:
    """Puts the opposite for one word of place or company."""

    name: str = "@name@"
    version: str = "1"  # raise it whenever the texts change
    keeps_meaning: bool = False  # a hard negative; True makes hard positives

    def __call__(self, caption, rng):
        """One text, or the reason why there is none. Randomness comes from rng alone."""
        # A token has text, lemma, pos, tag and its place in caption.text; there are
        # caption.chunks and caption.graph, too.
        places = [token for token in caption.tokens if token.text.lower() in OPPOSITES]
        if not places:
            return Refused("no-opposite")
        token = rng.choice(places)
        word = OPPOSITES[token.text.lower()]
        text = caption.text[: token.start] + word + caption.text[token.end :]
        edit = Edit(token.start, token.end, token.start, token.start + len(word))
        return Rewritten(text, self.name, self.keeps_meaning, "opposite", (edit,))
'''
_REWRITE_TEST = '''"""What @ident@.py promises. Run with: pytest test_@ident@.py"""

from pathlib import Path

from PIL import Image

import compoclip

FILE = str(Path(__file__).with_name("@ident@.py"))


def rewritten(caption, seed=0):
    (record,) = compoclip.rewrite(caption, FILE, seed=seed)
    return record["text"] or record["reason"]


def test_it_changes_one_word():
    assert rewritten("a red star above a blue mug") == "a red star below a blue mug"
    both = {rewritten("a man with a dog above a mat", seed) for seed in range(20)}
    assert both == {"a man without a dog above a mat", "a man with a dog below a mat"}


def test_it_refuses_rather_than_invents():
    assert rewritten("a red star") == "no-opposite"
    assert rewritten("...") == "no-opposite"
''' + _TRAINS.replace('"bundled", @what@, data', '"bundled", "negclip", data').replace(
    "**few)", "texts=FILE, **few)"
)
_BENCHMARK = '''"""@name@: a benchmark of my own.

Read from ROOT/@ident@/items.jsonl (option annotations: another file), one item a line:

    {"image": "1.jpg", "caption": "a cup left of a plate", "false": "a cup right of a plate",
     "part": "left"}

image: a file in ROOT/@ident@ (argument images: in another folder). ROOT is what --data names.

compoclip evaluate bundled --on ./@ident@.py --data ROOT
"""

from pathlib import Path

from compoclip.benchmarks import Case, CaseReader, Form, Meta, files

META = Meta(
    id="@ident@",
    title="@name@",
    citation="my own",
    source="my own files",
    licence="my own",
    access="open",
    files=("@ident@/items.jsonl",),
    images=("@ident@",),
    parts=("left", "right"),  # its sub-tasks
    chance={"": 1 / 2},
    skills={"left": "spatial", "right": "spatial"},
)


def cases(data, *, annotations: Path | None = None):
    """One item a line: the caption has to score better than the false one. A tie is wrong."""
    path = annotations or data.root / "@ident@" / "items.jsonl"
    for number, where, row in data.lines("items", path):
        photo = files.photo(data.photos("@ident@"), row, "image", where)
        texts = files.text(row, "caption", where), files.text(row, "false", where)
        part = files.text(row, "part", where)
        yield Case(f"{number}", Form.CHOOSE_TEXT, (photo,), texts, part)  # the first text is right


BENCHMARK = CaseReader(META, cases)
'''
_BENCHMARK_TEST = '''"""What @ident@.py promises. Run with: pytest test_@ident@.py"""

import json
from pathlib import Path

import pytest
from PIL import Image

import compoclip

FILE = str(Path(__file__).with_name("@ident@.py"))


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "@ident@"
    folder.mkdir()
    lines = []
    for number, (part, other) in enumerate([("left", "right"), ("right", "left")] * 2):
        Image.new("RGB", (64, 64), (60 * number, 0, 0)).save(folder / f"{number}.jpg")
        true, false = (f"a cup {side} of a plate" for side in (part, other))
        row = {"image": f"{number}.jpg", "caption": true, "false": false, "part": part}
        lines.append(json.dumps(row))
    (folder / "items.jsonl").write_text("\\n".join(lines))
    return tmp_path


def measured(data, spec=FILE):
    options = compoclip.EvaluateOptions(on=(spec,), data=data, out=data / "results", device="cpu")
    (results,) = compoclip.evaluate(options, {"bundled": "bundled"})
    return results


def test_a_model_is_measured_on_every_item(data):
    results = measured(data)
    assert results.benchmark == "@ident@"
    assert set(results.scores) == {"left", "right"}
    assert results.aggregates[results.headline].n == 4
    assert measured(data, f"{FILE}:left").headline_score.n == 2


def test_a_line_that_lacks_something_is_named(data):
    (data / "@ident@" / "items.jsonl").write_text('{"image": "0.jpg"}')
    with pytest.raises(compoclip.CompoclipError, match="line 1"):
        measured(data)
'''
_FILES = {
    "method": (_METHOD, _METHOD_TEST),
    "rewrite": (_REWRITE, _REWRITE_TEST),
    "loss": (_LOSS, _LOSS_TEST),
    "benchmark": (_BENCHMARK, _BENCHMARK_TEST),
}


@dataclass(frozen=True)
class NewOptions:
    """Write a working file of your own to start from, and a test beside it that passes.

    Examples:
        compoclip new method my-method
        compoclip new rewrite opposites --out ideas
        pytest ideas/test_opposites.py

    Args:
        kind: What it is.
        name: What it is called: letters, digits, - and _. The files are NAME.py and test_NAME.py,
            with _ for -.
        out: Folder for the files; made if it is not there.
        json: Print the paths as JSON.
    """

    kind: Annotated[
        Literal["method", "rewrite", "loss", "benchmark"],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="method|rewrite|loss|benchmark"),
    ]
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    out: Path = Path()
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """Write both files; returns the exit code."""
    options = parse(NewOptions, "new", argv)
    plain = options.name.lower().replace("-", "_")
    if not plain.isidentifier() or keyword.iskeyword(plain) or not plain.isascii():
        raise UsageError(
            f"{options.name!r:.80}: a name has letters, digits, - and _, and begins with a letter"
        )
    if plain.replace("_", "-") in {each.replace("_", "-") for each in _taken(options.kind)}:
        raise UsageError(f"{options.name}: there is a {options.kind} of that name; choose another")
    paths = (options.out / f"{plain}.py", options.out / f"test_{plain}.py")
    for path in paths:
        if path.exists():
            raise CompoclipError(f"{path}: is there already; choose another name or --out")
    words = {
        "@name@": plain.replace("_", "-"),
        "@ident@": plain,
        "@Class@": "".join(part.capitalize() for part in plain.split("_")),
    }
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(options.out, error) from error
    for path, text in zip(paths, _FILES[options.kind]):
        for mark, word in words.items():
            text = text.replace(mark, word)
        write_text(path, text)
    if options.json:
        emit_json({"file": str(paths[0]), "test": str(paths[1])})
        return 0
    print(f"{paths[0]}\n{paths[1]}    (pytest {paths[1]})")
    return 0


def _taken(kind: str) -> Sequence[str]:
    """The names of that kind that are there already."""
    if kind == "method":
        from compoclip.methods.registry import method_names

        return method_names()
    if kind == "rewrite":
        from compoclip.rewrites.base import pair_rewrite_names, rewrite_names

        return (*rewrite_names(), *pair_rewrite_names())
    if kind == "benchmark":
        from compoclip.benchmarks.registry import benchmark_names

        return benchmark_names()
    return tuple(own.installed("losses"))
