"""One file over HTTP: resumed where it broke off, checked, and put in place only when it is whole.

What has arrived lies in `NAME.part` beside the file, and what the server called that version of it
(its ETag or date) in `NAME.part.version`; both go when the file is whole.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from compoclip import files
from compoclip.benchmarks.files import file_hash
from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError

_BLOCK = 1 << 20
_AGENT = "compoclip (research data download)"
_PASSING = (408, 425, 429, 500, 502, 503, 504)
Progress = Callable[[int, int | None], None]
"""Called with the bytes there so far and the bytes in all, None where not known."""


@dataclass(frozen=True)
class Patience:
    """tries: in a row without a single new byte. pause: seconds before the second, doubled each
    time. timeout: seconds without an answer."""

    tries: int = 5
    pause: float = 1.0
    timeout: float = 60.0


@dataclass(frozen=True)
class Expected:
    """What a whole file must be; empty or 0 where not known. blake2b: 128 bit, as `Meta.hashes`."""

    size: int = 0
    md5: str = ""
    blake2b: str = ""


class _BrokenError(Exception):
    """The transfer broke off and may go on."""


def download(
    url: str,
    path: Path,
    expected: Expected | None = None,
    progress: Progress | None = None,
    patience: Patience | None = None,
) -> int:
    """Fetch `url` to `path`, going on with what an earlier run left; returns the bytes of the file.

    A checksum decides whether the file is right; without one its size, if known, else the size that
    the server announces. Raises CompoclipError when the server refuses, the connection fails again
    and again, the file is not the expected one or cannot be written; what has arrived of a broken
    transfer stays for the next run, a wrong file is deleted. UsageError for other than http(s).
    """
    expected, patience = expected or Expected(), patience or Patience()
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url}: only http and https addresses can be fetched")
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _transfer(url, part, progress, patience)
        _verify(url, part, expected)
        size = part.stat().st_size
        os.replace(part, path)
        _version_file(part).unlink(missing_ok=True)
    except OSError as error:
        raise files.unwritable(path, error) from error
    return size


def _transfer(url: str, part: Path, progress: Progress | None, patience: Patience) -> None:
    failures = 0
    while True:
        before = _size(part)
        try:
            _attempt(url, part, progress, patience.timeout)
            return
        except _BrokenError as error:
            failures = 1 if _size(part) > before else failures + 1
            if failures >= patience.tries:
                raise CompoclipError(
                    f"{url}: {error}, {failures} times in a row; try again later, what has arrived "
                    "is kept"
                ) from error
            wait = patience.pause * 2 ** (failures - 1)
            note(f"{url}: {error}; trying again in {wait:g} s")
            time.sleep(wait)


def _attempt(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """Fetch what is lacking; raises _BrokenError when that may be tried again."""
    have = _size(part)
    version = _version(part) if have else ""
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if version:  # a server whose file has changed then sends all of the new one
            headers["If-Range"] = version
    try:
        with _opener().open(
            urllib.request.Request(url, headers=headers), timeout=timeout
        ) as answer:
            start = _start(answer, have)
            total = _total(answer, start)
            mark = _mark(answer)
            if mark != version or not have:
                _version_file(part).write_text(mark, encoding="utf-8")
            with part.open("r+b" if start else "wb") as out:
                out.seek(start)
                got = _copy(answer, out, start, total, progress)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:
                _refused_range(error, part, have)
                return
            if error.code in _PASSING:
                raise _BrokenError(f"the server answers {error.code} ({error.reason})") from error
            raise CompoclipError(
                f"{url}: the server answers {error.code} ({error.reason}); it may have moved: see "
                "compoclip data ls, or give a mirror with --url-base"
            ) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise CompoclipError(
                f"{url}: its certificate is not valid ({error.reason.verify_message}); check the "
                "address and the clock"
            ) from error
        raise _BrokenError(f"no connection ({_reason(error.reason)})") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        raise _BrokenError(f"the transfer broke off ({_reason(error)})") from error
    if total is not None and got < total:
        raise _BrokenError(f"the transfer broke off at {got:,} of {total:,} bytes")


def _copy(
    answer: http.client.HTTPResponse,
    out: BinaryIO,
    start: int,
    total: int | None,
    progress: Progress | None,
) -> int:
    got = start
    while block := answer.read1(_BLOCK):
        out.write(block)
        got += len(block)
        if progress is not None:
            progress(got, total)
    return got


def _refused_range(error: urllib.error.HTTPError, part: Path, have: int) -> None:
    """A range beyond the end: all is there, or what is there is no part of this file."""
    if (error.headers.get("Content-Range") or "").rpartition("/")[2] == str(have):
        return
    part.unlink()
    raise _BrokenError("what had arrived is no part of this file and was deleted") from error


def _start(answer: http.client.HTTPResponse, have: int) -> int:
    """Where the bytes of an answer begin: servers may ignore a range and send everything."""
    if answer.status != 206:
        return 0
    unit, _, span = (answer.headers.get("Content-Range") or "").partition(" ")
    first = span.partition("-")[0]
    if unit != "bytes" or first != str(have):
        raise _BrokenError(f"the server sent another range than asked for ({span or 'none'})")
    return have


def _total(answer: http.client.HTTPResponse, start: int) -> int | None:
    length = answer.headers.get("Content-Length")
    return start + int(length) if length and length.isdecimal() else None


def _mark(answer: http.client.HTTPResponse) -> str:
    """What tells versions of the file apart: a strong ETag, or the date; "" for neither."""
    tag = answer.headers.get("ETag") or ""
    return tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified") or ""


def _verify(url: str, part: Path, expected: Expected) -> None:
    size = part.stat().st_size
    if expected.blake2b:
        good, what = file_hash(part) == expected.blake2b, "its blake2b checksum"
    elif expected.md5:
        good, what = _md5(part) == expected.md5, "its md5 checksum"
    elif expected.size:
        good, what = size == expected.size, f"{size:,} bytes instead of {expected.size:,}: its size"
    else:
        return
    if not good:
        part.unlink()
        with suppress(FileNotFoundError):
            _version_file(part).unlink()
        raise CompoclipError(
            f"{url}: {what} is not that of the official file; it was deleted, try again or fetch "
            "it by hand"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS only, also after a redirection; proxies of the environment are used."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _version(part: Path) -> str:
    path = _version_file(part)
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _reason(error: object) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())
