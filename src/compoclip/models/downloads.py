"""Downloads of models from the Hugging Face hub."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from compoclip.errors import CompoclipError
from compoclip.files import reason
from compoclip.models.names import HUB

_PATIENCE = 5.0  # seconds for the hub to answer at all; the files may take as long as they do
_GATEWAYS = (502, 503, 504)  # what a proxy says of a server that it does not reach
_SMALL = ("*.json", "*.txt", "*.gz", "*.model")


def downloaded(spec: str, weights_of: Callable[[str], Iterable[str]]) -> str:
    """Return the folder with the files of hf-hub:ORG/REPO that a model needs, from the network or
    the cache.

    weights_of: returns patterns of weight files for the folder of small files; the first pattern
    that matches is fetched. Raises CompoclipError when the model cannot be had.
    """
    from huggingface_hub import snapshot_download

    repository = spec.removeprefix(HUB)
    with downloading(spec):
        folder = snapshot_download(repository, allow_patterns=[*_SMALL])
        for pattern in weights_of(folder):
            folder = snapshot_download(repository, allow_patterns=[*_SMALL, pattern])
            if any(Path(folder).glob(pattern)):
                break
        return str(folder)


@contextmanager
def downloading(spec: str) -> Iterator[None]:
    """Any failure to fetch weights as one line with the remedy. Where the hub does not answer
    within HF_HUB_ETAG_TIMEOUT seconds (5), the cache is used at once, without the library's minute
    of trying again: as with HF_HUB_OFFLINE, and without the libraries' own words on failure."""
    from huggingface_hub import constants, get_session

    offline, silence = bool(constants.HF_HUB_OFFLINE), ""
    before = logging.root.manager.disable
    if not offline:
        set_by_user = "HF_HUB_ETAG_TIMEOUT" in os.environ
        patience = constants.HF_HUB_ETAG_TIMEOUT if set_by_user else _PATIENCE
        try:
            response = get_session().head(constants.ENDPOINT, timeout=patience)
            if response.status_code in _GATEWAYS:
                silence = f"HTTP {response.status_code}"
        except Exception as error:  # of whichever HTTP library the hub's client uses
            silence = reason(error)
    try:
        if silence:
            constants.HF_HUB_OFFLINE = True
            logging.disable(logging.ERROR)
        yield
    except CompoclipError:
        raise
    except Exception as error:  # network libraries raise dozens of unrelated types
        cause = f"no answer from {constants.ENDPOINT}: {silence}" if silence else reason(error)
        remedy = "connect to the network once, or give a file with ARCHITECTURE@FILE"
        if offline:
            cause = "HF_HUB_OFFLINE forbids the network and the cache has it not"
            remedy = "unset it, or fetch the model once where there is a network"
        raise CompoclipError(f"{spec}: could not be downloaded ({cause}); {remedy}") from error
    finally:
        if silence:
            constants.HF_HUB_OFFLINE = False
            logging.disable(before)
