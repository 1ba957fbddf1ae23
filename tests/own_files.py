"""Files of a user's own, and packages that add to this one, as tests write them."""

from __future__ import annotations

from pathlib import Path

METHOD = '''
from compoclip.losses import clip_loss
from compoclip.methods import CaptionPlan, LossTerm, Method, Optim, recipe

@recipe
def mine(*, weight: float = 1.0, optim: Optim = Optim()) -> Method:
    """A method of my own.

    Args:
        weight: Of its loss.
        optim: Optimiser and schedule.
    """
    losses = (LossTerm("clip", clip_loss, weight=weight),)
    return Method(name="mine", plan=CaptionPlan(), losses=losses, optim=optim)
'''
REWRITE = '''
from __future__ import annotations

from dataclasses import dataclass

from compoclip.rewrites import Edit, Refused, Rewritten, negclip_swap

@dataclass(frozen=True)
class Denied:
    """Says that the caption is wrong."""

    name: str = "denied"
    version: str = "1"
    keeps_meaning: bool = False

    def __call__(self, caption, rng):
        if not caption.tokens:
            return Refused("empty-caption")
        words = rng.choice(["it is false that", "nobody sees that"])
        text = f"{words} {caption.text}"
        edit = Edit(0, 0, 0, len(words) + 1)
        return Rewritten(text, self.name, self.keeps_meaning, "denied", (edit,))
'''
SAMPLED = """
from compoclip.rewrites import SampledRewrite

NAMELESS = SampledRewrite("nameless", "1", False, "no-name", lambda reading, rng: ())
"""
LOSS = '''
from compoclip.losses import negclip_loss
from compoclip.methods import LossTerm

def half(features, layout):
    """Half of the contrast with negatives."""
    return 0.5 * negclip_loss(features, layout)

TERM = LossTerm("half", half, weight=0.25)
'''
BENCHMARK = """
from dataclasses import replace
from compoclip.benchmarks import Case, CaseReader, Form, ImageRef, Meta

META = Meta(
    id="mugs", title="Mugs", citation="mine", source="mine", licence="mine", access="open",
    files=(), images=(), parts=("left", "right"), chance={}, skills={},
)

def _cases(data):
    for k in range(6):
        part = ("left", "right")[k % 2]
        photo = ImageRef(data.root / f"{k}.jpg")
        yield Case(str(k), Form.CHOOSE_TEXT, (photo,), (f"right {k}", f"wrong {k}"), part)

MUGS = CaseReader(META, _cases, headline="micro")
"""


def write(folder: Path, name: str, code: str) -> Path:
    """A file of the user's own."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(code, encoding="utf-8")
    return file


def install(site: Path, package: str, code: str, group: str, **entries: str) -> None:
    """What pip leaves of a package with entry points: the module and its metadata."""
    write(site, f"{package}.py", code)
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
    (info / "METADATA").write_text(about, encoding="utf-8")
    lines = [f"{name} = {value}\n" for name, value in entries.items()]
    (info / "entry_points.txt").write_text(f"[{group}]\n{''.join(lines)}")
