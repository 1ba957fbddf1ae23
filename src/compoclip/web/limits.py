"""How requests share calls of the model, and how many items they may have."""

from __future__ import annotations

from dataclasses import dataclass

from compoclip.errors import UsageError
from compoclip.typed import Count, NonNegative, check_fields


@dataclass(frozen=True)
class BatchSettings:
    """How many items a call of the model, a request and the queue hold.

    Args:
        size: Most texts or images in one call of the model.
        wait: Seconds that an item may wait for others.
        items: Most texts and images in one request.
        queue: Most texts and images of all open requests.
    """

    size: Count = 64
    wait: NonNegative = 0.005
    items: Count = 256
    queue: Count = 1024

    def __post_init__(self) -> None:
        """Raise UsageError for a setting out of its range, or for requests that never fit."""
        check_fields(self, "batches: ")
        if self.items > self.queue:
            raise UsageError(
                f"a request may have {self.items} items (--max-items), and the queue holds "
                f"{self.queue} (--queue): the largest request would never fit"
            )
