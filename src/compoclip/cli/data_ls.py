"""`compoclip data ls [NAME ...]`: the benchmarks, their size and licence, and how to get them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from compoclip.benchmarks.catalogue import Entry, catalogue, entry
from compoclip.cli.options import parse
from compoclip.console import emit_json, table


@dataclass(frozen=True)
class LsOptions:
    """List the benchmarks: items, licence, size, and whether their files can be had.

    Examples:
        compoclip data ls
        compoclip data ls sugarcrepe valse

    Args:
        names: Show all that is known about these.
        json: Print JSON.
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ()
    json: bool = False


def main(argv: Sequence[str]) -> int:
    """One row a benchmark, or one paragraph a benchmark that is named."""
    options = parse(LsOptions, "data ls", argv)
    entries = [entry(name) for name in options.names] or catalogue()
    if options.json:
        emit_json([each.to_json() for each in entries])
    elif options.names:
        print("\n\n".join("\n".join(details(each)) for each in entries))
    else:
        print(overview(entries))
    return 0


def overview(entries: Sequence[Entry]) -> str:
    """An aligned table, one row a benchmark."""
    header = ["name", "title", "licence", "obtainable", "items", "files", "photos", "to fetch"]
    rows = [
        [
            each.meta.id,
            each.meta.title,
            _short(each.meta.licence),
            each.meta.status,
            "by set" if each.meta.family else f"{each.items:,}" if each.items else "?",
            _share(each, each.meta.files),
            _share(each, each.meta.images),
            _size(each),
        ]
        for each in entries
    ]
    notes = [
        "",
        "files, photos: those that `compoclip data fetch` can get, of all that are needed",
        "to fetch: their size, archives packed; + where that of some is not known",
        "compoclip data ls NAME: source, terms, what to do by hand, files, checksums",
    ]
    return "\n".join([table(rows, header, left=4), *notes])


def details(each: Entry) -> Iterator[str]:
    """Lines on one benchmark."""
    about = each.meta
    yield f"{about.id}: {about.title}"
    yield f"  paper       {about.citation}"
    yield f"  source      {about.source}"
    yield f"  licence     {about.licence}"
    known = about.access.startswith(about.status)
    yield f"  obtainable  {about.access if known else f'{about.status}; {about.access}'}"
    if about.family:
        yield f"  sets        {', '.join(about.parts)} (name one: {about.id}:{about.parts[0]})"
    else:
        yield f"  parts       {', '.join(about.parts)}"
    if about.requires:
        yield f"  needs       {about.id},{about.requires}=..."
    counts = ", ".join(f"{name} {n:,}" for name, n in about.expected.items())
    total = f"{each.items:,} in all" if each.items else ""
    yield f"  items       {'; '.join(filter(None, (total, counts))) or 'not known'}"
    for title, places in (("file", about.files), ("photos", about.images)):
        for place in places:
            yield f"  {title:<10}  {place}"
            if place in about.hashes:
                yield f"              blake2b {about.hashes[place]}"
            source = each.sources.get(place)
            if source is None:
                yield "              by hand, see source"
            else:
                size = f" ({in_bytes(source.size)})" if source.size else ""
                yield f"              {source.url}{size}"
            if source is not None and source.md5:
                yield f"              md5 {source.md5}"
            if source is not None and not source.md5 and place not in about.hashes:
                plain = ", plain http" if source.url.startswith("http://") else ""
                yield f"              no published checksum known{plain}: not verified when fetched"
    for archive in about.archives:
        yield f"  or archive  {archive}"
    for file in about.optional:
        yield f"  may lack    {file}"


def in_bytes(number: int) -> str:
    """ "1.7 MB" (10^6 bytes), "" for 0."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number} B" if number else ""


def _size(each: Entry) -> str:
    more = any(not source.size for source in each.sources.values())
    return f"{in_bytes(each.size)} +".strip() if more else in_bytes(each.size)


def _share(each: Entry, places: Sequence[str]) -> str:
    return f"{sum(place in each.sources for place in places)} of {len(places)}"


def _short(licence: str) -> str:
    return licence.partition(";")[0]
