"""Data roots that hold other items in the official formats, such as a made world's.

Such a root has a file `<root>/edition.json`: {"edition": "world"}. Its benchmarks are called
"sugarcrepe@world" and so on, so that no report can take their numbers for the official ones, and
their coverage is measured against the items that they list instead of the official counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from compoclip.benchmarks import files
from compoclip.benchmarks.case import Benchmark, Classification, Retrieval
from compoclip.errors import CompoclipError

FILE = "edition.json"


def read_edition(root: Path) -> str | None:
    """Name of the edition below `root`; None where the files are the official ones.

    Raises CompoclipError when the file is malformed or the name has other characters than letters,
    digits, "-" and "_".
    """
    path = root / FILE
    if not path.is_file():
        return None
    name = files.text(files.record(files.read_json(path), str(path)), "edition", str(path))
    if not name.replace("-", "").replace("_", "").isalnum():
        raise CompoclipError(f"{path}: edition {name!r:.80} may hold letters, digits, - and _ only")
    return name


def as_edition(benchmark: Benchmark, name: str) -> Benchmark:
    """The benchmark renamed "<name>@<edition>", expecting exactly the items that it lists."""
    return replace(benchmark, name=f"{benchmark.name}@{name}", expected=listed(benchmark))


def listed(benchmark: Benchmark) -> dict[str, int]:
    """Number of items by sub-task that the files list, whether or not their images exist."""
    content = benchmark.content
    if isinstance(content, Retrieval):
        return {"i2t": len(content.images), "t2i": len(content.texts)}
    if isinstance(content, Classification):
        parts = content.classes if content.tags else ("zero_shot",)
        return dict.fromkeys(parts, len(content.images))
    return dict(Counter(case.subtask for case in content))
