"""One file over HTTP: resumed where it broke off, checked, and put in place only when it is whole.

What has arrived lies in `NAME.part` beside the file, and what the server called that version of it
(its ETag or date) in `NAME.part.version`; both go when the file is whole.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import string
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, BinaryIO
from urllib.parse import quote, urljoin, urlsplit

from compoclip import files
from compoclip.benchmarks.files import file_hash
from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError

_BLOCK = 1 << 20
_AGENT = "compoclip (research data download)"
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_MOST_REDIRECTIONS = 10
_MOST_DIGITS = 15  # of a length in bytes
Progress = Callable[[int, int | None], None]
"""Called with the bytes there so far and the bytes in all, None where not known."""


@dataclass(frozen=True)
class DownloadPatience:
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

    @property
    def checksum(self) -> str:
        """Which checksum decides whether a file is right, "" where none is known."""
        return "blake2b" if self.blake2b else "md5" if self.md5 else ""


class _BrokenError(Exception):
    """The transfer broke off and may go on."""


def download(
    url: str,
    path: Path,
    expected: Expected | None = None,
    progress: Progress | None = None,
    patience: DownloadPatience | None = None,
    odd: Callable[[Path], str] = lambda path: "",
) -> int:
    """Fetch `url` to `path`, going on with what an earlier run left; returns the bytes of the file.

    A checksum decides whether the file is right; without one its size, if known, else the size that
    the server announces, and `odd`, which says what is wrong with a file, "" for nothing. Raises
    CompoclipError when the server refuses, sends the request on to anything but http or from https
    to http, the connection fails again and again, the file is not the expected one or cannot be
    written; what has arrived of a broken transfer stays for the next run, a wrong file is deleted.
    UsageError for other than http(s).
    """
    expected, patience = expected or Expected(), patience or DownloadPatience()
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url}: only http and https addresses can be fetched")
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _transfer(url, part, progress, patience)
        _verify(url, part, expected, odd)
        size = part.stat().st_size
        files.sync(part)
        os.replace(part, path)
        files.sync_folder(path.parent)
        _version_file(part).unlink(missing_ok=True)
    except OSError as error:
        raise files.unwritable(path, error) from error
    return size


def _transfer(url: str, part: Path, progress: Progress | None, patience: DownloadPatience) -> None:
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
            total = _total(url, answer, start)
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
                raise _BrokenError(f"the server answers {_told(error)}") from error
            raise CompoclipError(
                f"{url}: the server answers {_told(error)}; it may have moved: see "
                "compoclip data ls, or give a mirror with --url-base"
            ) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise CompoclipError(
                f"{url}: its certificate is not valid ({error.reason.verify_message}); check the "
                "address and the clock"
            ) from error
        raise _BrokenError(f"no connection ({_reason(error.reason)})") from error
    except (ValueError, http.client.InvalidURL) as error:  # a host or port that is none
        raise CompoclipError(
            f"{url}: cannot be asked for ({_reason(error)}); check the address"
        ) from error
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


def _total(url: str, answer: http.client.HTTPResponse, start: int) -> int | None:
    length = answer.headers.get("Content-Length")
    if length is None:
        return None
    if not (length.isascii() and length.isdigit() and len(length) <= _MOST_DIGITS):
        raise CompoclipError(
            f"{url}: the server states a length of {length!r:.40}; try again later, or give a "
            "mirror with --url-base"
        )
    return start + int(length)


def _mark(answer: http.client.HTTPResponse) -> str:
    """What tells versions of the file apart: a strong ETag, or the date; "" for neither."""
    tag = answer.headers.get("ETag") or ""
    strong = tag if not tag.startswith("W/") else ""
    return _sendable(strong or answer.headers.get("Last-Modified") or "")


def _sendable(mark: str) -> str:
    """A mark as it may stand in a request, "" for one that may not."""
    return mark if mark.isascii() and mark.isprintable() else ""


def _verify(url: str, part: Path, expected: Expected, odd: Callable[[Path], str]) -> None:
    size = part.stat().st_size
    problem = "" if expected.checksum else odd(part)
    if expected.blake2b:
        problem = "" if file_hash(part) == expected.blake2b else "its blake2b checksum"
    elif expected.md5:
        problem = "" if _md5(part) == expected.md5 else "its md5 checksum"
    elif expected.size and size != expected.size:
        problem = f"{size:,} bytes instead of {expected.size:,}: its size"
    if problem:
        part.unlink()
        with suppress(FileNotFoundError):
            _version_file(part).unlink()
        raise CompoclipError(
            f"{url}: {problem} is not that of the official file; it was deleted, try again or "
            "fetch it by hand"
        )


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Follows a redirection to http(s), from https to https only, and reads none of its body.

    One handler serves one request.
    """

    def __init__(self) -> None:
        self._followed = 0

    def http_error_302(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
    ) -> IO[bytes] | None:
        to = headers.get("Location")
        if to is None:
            return None  # then it is an error like any other
        url = _redirected(req.full_url, to)
        self._followed += 1
        if self._followed > _MOST_REDIRECTIONS:
            raise CompoclipError(
                f"{req.full_url}: redirected {_MOST_REDIRECTIONS} times; give a mirror with "
                "--url-base"
            )
        fp.close()
        again = urllib.request.Request(url, headers=req.headers)
        answer: IO[bytes] = self.parent.open(again, timeout=req.timeout)
        return answer

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _redirected(url: str, to: str) -> str:
    """The address that `to` means in an answer of `url`; CompoclipError for one not to follow."""
    try:
        new = quote(urljoin(url, to), encoding="latin-1", safe=string.punctuation)
        scheme = urlsplit(new).scheme
        _ = urlsplit(new).port  # refuses what is no port
    except ValueError as error:
        raise CompoclipError(
            f"{url}: redirects to {to!r:.200}, which is no address; give a mirror with --url-base"
        ) from error
    if scheme == "https" or (scheme == "http" and url.startswith("http://")):
        return new
    why = "which is not encrypted" if scheme == "http" else "which is neither http nor https"
    raise CompoclipError(f"{url}: redirects to {new[:200]}, {why}; give a mirror with --url-base")


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS only, also after a redirection; proxies of the environment are used."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        _Redirections,
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
    return _sendable(path.read_text(encoding="latin-1")) if path.is_file() else ""


def _told(error: urllib.error.HTTPError) -> str:
    return f"{error.code} ({files.reason(Exception(error.reason))})"


def _reason(error: object) -> str:
    return files.reason(error if isinstance(error, BaseException) else Exception(error))
