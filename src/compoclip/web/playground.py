"""The web playground: scores of an image with a caption and its rewrites, and search of photos."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from PIL import Image

from compoclip.analysis.maps import patch_maps, small_overlay
from compoclip.analysis.probe import Scored, candidates_of, score_candidates
from compoclip.bounds import MAX_PLAY_BODY, MAX_PLAY_CHARACTERS, MAX_SENT_BYTES
from compoclip.captions.graph import graph_tree
from compoclip.captions.parser import parse
from compoclip.captions.types import SceneGraph
from compoclip.data.decode import data_uri, decode
from compoclip.errors import CompoclipError, UsageError
from compoclip.evaluation.encoder import ModelEncoder
from compoclip.models.checkpoint import LoadedModel
from compoclip.search import PhotoIndex, search
from compoclip.search.page import FOUND_CSS, described, found_html, pictures_of, scores_explained
from compoclip.version import __version__
from compoclip.web.app import HttpError, Page, Website, json_page, require_known
from compoclip.web.images import RequestImages

_SIDE = 320  # pixels of the longer side of an overlay
_LARGE = 1600  # pixels of the longer side of a photo of the index
_FOUND = 12  # photos of a search
_SCORED = ("caption", "image")  # keys of a request for scores or maps


def caption_of(data: Mapping[str, Any]) -> str:
    """Return the caption, blanks tidied. Raises UsageError when it is missing or too long."""
    text: Any = data.get("caption")
    if not isinstance(text, str):
        raise UsageError("'caption' is missing: send the caption as a string")
    if len(text) > MAX_PLAY_CHARACTERS:
        raise UsageError(
            f"the caption has {len(text)} characters; at most {MAX_PLAY_CHARACTERS} are allowed"
        )
    tidy = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not tidy:
        raise UsageError("the caption is empty; type one")
    return tidy


def image_of(data: Mapping[str, Any]) -> Image.Image:
    """Return the RGB image in "image": an encoded image file in base64, or a data URI of one.

    Raises UsageError when it is missing, too large in bytes or pixels, or no image.
    """
    text: Any = data.get("image")
    if not isinstance(text, str):
        raise UsageError("'image' is missing: send the image file in base64")
    return RequestImages().read(text)


@dataclass(frozen=True)
class Playground:
    """At most two models by name, and examples: pairs of a true caption and its picture (PNG).

    index: photos to search, encoded by the first model.
    """

    models: Mapping[str, LoadedModel]
    examples: Sequence[tuple[str, bytes]] = ()
    index: PhotoIndex | None = None

    def info(self) -> dict[str, Any]:
        """Return the facts that the page shows at first."""
        return {
            "version": __version__,
            "models": [
                {"name": name, "architecture": model.identity.architecture}
                for name, model in self.models.items()
            ],
            "examples": [caption for caption, _ in self.examples],
            "limits": {"image_bytes": MAX_SENT_BYTES, "caption_characters": MAX_PLAY_CHARACTERS},
        }

    def score(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return every model's scores of the caption and its rewrites, and the scene graph.

        request: image (base64), caption. Raises UsageError for a bad request.
        """
        require_known(request, _SCORED)
        text, image = caption_of(request), image_of(request)
        caption = parse(text)
        candidates, refused = candidates_of(caption)
        texts = [candidate.text for candidate in candidates]
        models = []
        for name, model in self.models.items():
            scored = score_candidates(model, image, candidates)
            models.append(
                {
                    "name": name,
                    "candidates": [_record(candidate) for candidate in scored],
                    "flips": sum(s.flip for s in scored if s.candidate.kind == "negative"),
                    "negatives": sum(s.candidate.kind == "negative" for s in scored),
                    "truncated": model.tokenizer.truncated(texts),
                }
            )
        graph = caption.graph or SceneGraph()
        scene = {
            "objects": [
                {"name": node.name, "attributes": [attribute.name for attribute in node.attributes]}
                for node in graph.objects
            ],
            "relations": [
                {"subject": edge.subject, "words": edge.words or edge.name, "object": edge.object}
                for edge in graph.relations
            ],
            "lines": graph_tree(graph),
        }
        return {"caption": text, "graph": scene, "refused": refused, "models": models}

    def search(self, request: Mapping[str, str]) -> Page:
        """Return the page with the photos of the index that are nearest to the text "q".

        Without a text it has a box to type one in; without an index it says how to make one.
        """
        query, problem, answers = request.get("q", ""), "", ""
        if self.index and query.strip():
            try:
                answers = self._answers(self.index, caption_of({"caption": query}))
            except CompoclipError as error:
                problem = str(error)
        template = Environment(
            loader=PackageLoader("compoclip.web", "page"), autoescape=True
        ).get_template("search.html.j2")
        page = template.render(
            tabs=Markup(_tabs("search")),
            about=described(self.index) if self.index else _NO_INDEX,
            searchable=self.index is not None,
            longest=MAX_PLAY_CHARACTERS,
            query=query[:MAX_PLAY_CHARACTERS],
            problem=problem,
            answers=Markup(answers),
        )
        return page.encode(), "text/html; charset=utf-8"

    def _answers(self, index: PhotoIndex, query: str) -> str:
        """Return the HTML of the answers; the pictures link to larger ones and to their scores."""
        answers = search(index, self._searching, [query], _FOUND)
        pictures = {
            row: replace(
                picture,
                link=f"photos/{row}.jpg",
                play=f"./#photo={row}&caption={quote(query, safe='')}",
            )
            for row, picture in pictures_of(index, answers).items()
        }
        return found_html(answers, pictures, scores_explained(index))

    @cached_property
    def _searching(self) -> ModelEncoder:
        return ModelEncoder(next(iter(self.models.values())))

    def photo(self, request: Mapping[str, str]) -> Page:
        """Return the photo in the row "row" of the index, as a JPEG of bounded size."""
        photos, number = len(self.index.names) if self.index else 0, request["row"]
        digits = number if number.isascii() and number.isdigit() else ""
        row = int(digits) if 0 < len(digits) <= len(str(photos)) else photos
        if self.index is None or row >= photos:
            raise HttpError(404, "there is no such photo")
        large = decode(
            self.index.photo(row),
            name=self.index.names[row],
            min_size=(_LARGE, _LARGE),
            upright=self.index.about["upright"],
        )
        large.thumbnail((_LARGE, _LARGE), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        large.save(buffer, "jpeg", quality=90)
        return buffer.getvalue(), "image/jpeg"

    def maps(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return every model's token-patch map of every word, as PNG overlays in data URIs.

        request: as for `score`. A model without patch features has an "error" instead of words.
        """
        require_known(request, _SCORED)
        text, image = caption_of(request), image_of(request)
        models: list[dict[str, Any]] = []
        for name, model in self.models.items():
            try:
                maps = patch_maps(model, image, text)
            except CompoclipError as error:
                models.append({"name": name, "error": str(error)})
                continue
            words = []
            for word in maps.words:
                uri = data_uri(small_overlay(image, word.attention, maps.region, _SIDE), "png")
                words.append({"word": word.word, "cosine": round(word.cosine, 4), "overlay": uri})
            left_out = list(maps.left_out)
            models.append(
                {"name": name, "grid": list(maps.grid), "words": words, "left_out": left_out}
            )
        return {"caption": text, "models": models}


def _record(scored: Scored) -> dict[str, Any]:
    candidate = scored.candidate
    return {
        "text": candidate.text,
        "kind": candidate.kind,
        "made_by": list(candidate.made_by),
        "changed": [[e.new_start, e.new_end] for e in candidate.edits if e.new_end > e.new_start],
        "cosine": round(scored.cosine, 6),
        "flip": scored.flip,
    }


_TABS = {"./": "Score a caption", "search": "Search photos"}
_NO_INDEX = (
    "There are no photos to search. Make an index with compoclip index PHOTOS --model MODEL --out "
    "photos.index, then start compoclip play with --index photos.index."
)


def _tabs(current: str) -> str:
    """Return the top of both pages: the name of the program, and a link to each."""
    links = "".join(
        f'<a href="{address}"{" aria-current=page" if address == current else ""}>{name}</a>'
        for address, name in _TABS.items()
    )
    return f"<nav><h1>compoclip</h1>{links}</nav>"


def play_site(
    playground: Playground, host: str = "127.0.0.1", names: Sequence[str] = ()
) -> Website:
    """Make the website of a `Playground`.

    Requests are answered one at a time, since they share the models.

    Args:
        playground: Models and examples.
        host: Address to serve at.
        names: Further names that requests may call the server by.
    """
    folder = files("compoclip.web") / "page"
    kinds = {"style.css": "css", "graph.js": "javascript", "page.js": "javascript"}
    pages: dict[str, Page] = {
        f"/{name}": ((folder / name).read_bytes(), f"text/{kind}; charset=utf-8")
        for name, kind in kinds.items()
    }
    home = (folder / "page.html").read_text(encoding="utf-8")
    pages["/"] = home.replace("<!-- tabs -->", _tabs("./")).encode(), "text/html; charset=utf-8"
    pages["/found.css"] = FOUND_CSS.encode(), "text/css; charset=utf-8"
    pages["/api/info"] = json_page(playground.info())
    for number, (_, png) in enumerate(playground.examples):
        pages[f"/examples/{number}.png"] = (png, "image/png")
    return Website(
        pages,
        {"/api/score": playground.score, "/api/maps": playground.maps},
        computed={"/search": playground.search, "/photos/{row}.jpg": playground.photo},
        host=host,
        names=names,
        verb="play",
        expected="image and caption",
        body=MAX_PLAY_BODY,
        threads=1,
    )
