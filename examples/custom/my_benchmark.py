"""my-benchmark: a custom benchmark.

Reads ROOT/my_benchmark/items.jsonl (option annotations: another file), one item per line:

    {"image": "1.jpg", "caption": "a cup left of a plate", "false": "a cup right of a plate",
     "part": "left"}

image: a file in ROOT/my_benchmark (option images: another folder). --data names ROOT.

compoclip evaluate bundled --on ./my_benchmark.py --data ROOT
"""

from collections.abc import Iterator
from pathlib import Path

from compoclip.benchmarks import Case, CaseReader, Form, Loading, Meta, files

META = Meta(
    id="my_benchmark",
    title="my-benchmark",
    citation="unpublished",
    source="local files",
    licence="unpublished",
    access="open",
    files=("my_benchmark/items.jsonl",),
    images=("my_benchmark",),
    parts=("left", "right"),  # its sub-tasks
    chance={"": 1 / 2},
    skills={"left": "spatial", "right": "spatial"},
)


def cases(data: Loading, *, annotations: Path | None = None) -> Iterator[Case]:
    """Yield one item per line. The caption has to score higher than the false one."""
    path = annotations or data.root / "my_benchmark" / "items.jsonl"
    for number, where, row in data.rows("items", path):
        photo = files.photo(data.photos("my_benchmark"), row, "image", where)
        texts = files.text(row, "caption", where), files.text(row, "false", where)
        part = files.text(row, "part", where)
        yield Case(f"{number}", Form.CHOOSE_TEXT, (photo,), texts, part)  # the first text is right


BENCHMARK = CaseReader(META, cases)
