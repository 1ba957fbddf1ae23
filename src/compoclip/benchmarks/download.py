"""One file over HTTP: resumed where it broke off, checked, and put in place only when it is whole.

What has arrived lies in `NAME.part` beside the file. A known checksum decides when the file is
whole whether it is of one version. Without one `NAME.part.version` has what the server calls the
version (ETag or Last-Modified); a server that names none, or another, sends the whole file again.

No library does this: pooch cannot resume, and `http_get` of huggingface_hub joins parts of two
versions and follows redirections from https to http.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from compoclip import files
from compoclip.benchmarks.sources import RemoteFile
from compoclip.console import note
from compoclip.errors import CompoclipError, UsageError, require

TRIES = 5  # in a row without a single new byte
PAUSE = 1.0  # seconds before the second try, doubled each time
TIMEOUT = 60.0  # seconds without an answer
_BLOCK = 1 << 20
_AGENT = "compoclip (research data download)"
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_MIRROR = "give a mirror with --url-base"
_BROKEN = (
    *(urllib.error.URLError, http.client.HTTPException),
    *(ConnectionError, TimeoutError, ssl.SSLError),
)
_VERSION = re.compile(r'"[!#-~]{1,200}"|[A-Za-z0-9, :+-]{1,64}')  # no weak ETag
Progress = Callable[[int, int | None], None]
"""Called with the bytes there so far and the bytes in all, None where not known."""


class _BrokenError(Exception):
    """The transfer broke off and may be resumed."""


def download(
    url: str,
    path: Path,
    expected: RemoteFile | None = None,
    progress: Progress | None = None,
    odd: Callable[[Path], str] = lambda path: "",
) -> int:
    """Fetch `url` to `path`, resuming what an earlier run left; return the bytes of the file.

    A checksum decides whether the file is right; without one its size, if known, else the size that
    the server announces, and `odd`, which says what is wrong with a file, "" for nothing. What has
    arrived of a broken transfer stays for the next run, a wrong file is deleted. Raises
    CompoclipError when the server refuses, redirects to anything but http or from https to http,
    the connection fails again and again, the file is not the expected one or cannot be written.
    """
    expected = expected or RemoteFile("", url)
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url}: only http and https addresses can be fetched")
    part = path.with_name(f"{path.name}.part")
    version = path.with_name(f"{part.name}.version")
    failures = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            before = _size(part)
            try:
                _attempt(url, part, None if expected.checksum else version, progress)
                break
            except _BrokenError as error:
                failures = 1 if _size(part) > before else failures + 1
                if failures >= TRIES:
                    raise CompoclipError(
                        f"{url}: {error}, {failures} times in a row; try again later: the "
                        "received part is stored"
                    ) from error
                wait = PAUSE * 2 ** (failures - 1)
                note(f"{url}: {error}; trying again in {wait:g} s")
                time.sleep(wait)
        if problem := _mismatch(part, expected) or ("" if expected.checksum else odd(part)):
            part.unlink()
            version.unlink(missing_ok=True)
            raise CompoclipError(
                f"{url}: {problem} is not that of the official file; it was deleted, try again or "
                "fetch it by hand"
            )
        size = part.stat().st_size
        files.sync(part)
        os.replace(part, path)
        version.unlink(missing_ok=True)
        files.sync_folder(path.parent)
    except OSError as error:
        raise files.unwritable(path, error) from error
    return size


def _attempt(url: str, part: Path, version: Path | None, progress: Progress | None) -> None:
    """Fetch what is lacking; raises _BrokenError when that may be tried again.

    version: The file with the version of what has arrived; None if a checksum decides.
    """
    have, arrived = _size(part), _version_in(version)
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if version is not None and not arrived:
        have = 0
    if have:
        headers["Range"] = f"bytes={have}-"
    if have and arrived:
        headers["If-Range"] = arrived
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.build_opener(Redirections).open(request, timeout=TIMEOUT) as answer:
            start = have if answer.status == 206 else 0  # servers may ignore a range
            span = answer.headers.get("Content-Range") or ""
            if start and not span.startswith(f"bytes {have}-"):
                raise _BrokenError(f"the server sent another range than was requested ({span})")
            sent = _version_of(answer.headers)
            if start and arrived and sent not in ("", arrived):
                part.unlink()
                raise _BrokenError(
                    "the file changed during the download, so the received part was deleted"
                )
            stated = answer.headers.get("Content-Length")
            if stated is not None and answer.length is None:
                raise CompoclipError(
                    f"{url}: the server states a length of {stated!r:.40}; try again later, or "
                    f"{_MIRROR}"
                )
            total = None if stated is None else start + answer.length
            got = start
            with part.open("r+b" if start else "wb") as out:
                out.seek(start)
                if version is not None and not start:  # after what was there is gone
                    version.write_text(sent, encoding="ascii")
                while block := answer.read1(_BLOCK):
                    out.write(block)
                    got += len(block)
                    if progress is not None:
                        progress(got, total)
    except urllib.error.HTTPError as error:
        with error:
            reason = f"the server answers {error.code} ({files.reason(Exception(error.reason))})"
            if error.code == 416 and have:  # all is there, or what is there is no part of the file
                if (error.headers.get("Content-Range") or "").rpartition("/")[2] == str(have):
                    return
                part.unlink()
                raise _BrokenError(
                    "the received part does not belong to this file and was deleted"
                ) from error
            if error.code in _PASSING:
                raise _BrokenError(reason) from error
            raise CompoclipError(
                f"{url}: {reason}; it may have moved: see compoclip data ls, or {_MIRROR}"
            ) from error
    except (ValueError, OverflowError, http.client.InvalidURL) as error:  # no host, port, length
        raise CompoclipError(
            f"{url}: cannot be requested ({files.reason(error)}); check the address"
        ) from error
    except _BROKEN as error:
        raise _BrokenError(f"no connection, or a broken one ({files.reason(error)})") from error
    if total is not None and got < total:
        raise _BrokenError(f"the transfer broke off at {got:,} of {total:,} bytes")


class Redirections(urllib.request.HTTPRedirectHandler):
    """Redirections to http and https alone, and from https to https."""

    def redirect_request(self, *arguments: Any) -> urllib.request.Request | None:
        """Return the next request; refuse other redirections."""
        request, *_, url = arguments
        scheme, _ = urlsplit(url).scheme, urlsplit(url).port  # raises for what is no port
        good = scheme == "https" or (scheme == "http" and request.type == "http")
        reason = "not encrypted" if scheme == "http" else "neither http nor https"
        require(good, request.full_url, f"redirects to {url[:200]}, which is {reason}; {_MIRROR}")
        return super().redirect_request(*arguments)


def _mismatch(path: Path, expected: RemoteFile) -> str:
    """Return what tells that a file is not the expected one, "" for nothing."""
    if kind := expected.checksum:
        right = files.file_hash(path, kind) == (expected.blake2b or expected.md5)
        return "" if right else f"its {kind} checksum"
    size = path.stat().st_size
    if expected.size and size != expected.size:
        return f"{size:,} bytes instead of {expected.size:,}: its size"
    return ""


def _version_of(headers: Message) -> str:
    """Return what a server calls the version of a file, "" for nothing that can be relied on."""
    names = (headers.get(name) or "" for name in ("ETag", "Last-Modified"))
    return next(filter(_VERSION.fullmatch, names), "")


def _version_in(file: Path | None) -> str:
    """Return the version that a file holds, "" without one."""
    text = file.read_text("ascii", "replace") if file is not None and file.is_file() else ""
    return text if _VERSION.fullmatch(text) else ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
