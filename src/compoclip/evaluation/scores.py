"""Names of the scores of an image and a text, judged without torch."""

from __future__ import annotations

from compoclip import plugins
from compoclip.errors import UsageError

COSINE, PARTS = "cosine", "parts"
SCORES = (COSINE, "itm", "local", "maxsim", PARTS, "vqa")
"""Names that `--score` takes, besides files."""


def require_score(name: str) -> None:
    """Raise UsageError for an unknown score, or a file that is absent; "" is the model's own."""
    if plugins.is_file(name):
        plugins.require_file(name)
    elif name and name not in SCORES:
        raise UsageError(f"--score {name}: must be {', '.join(SCORES)} or a file ./NAME.py")
