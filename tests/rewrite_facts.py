"""What holds of one rewrite and not of all: recorded beside its digest, so that a new rewrite
changes no test of the others.

`golden/rewrites/NAME.json` may have "excused" (why more than 2 % of its texts may be wrong in the
world), "judged" (how many of 600 texts the oracle must be able to judge; 50 if not said) and
"drawn": false (one text for each caption that is asked about, whatever the seed).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("golden") / "rewrites"


def facts_of(name: str) -> dict[str, Any]:
    """What is recorded of the rewrite or of `parser`; nothing where there is no record."""
    path = GOLDEN / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else {}
