"""The web playground: an image, a caption, its rewrites, and what models make of them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from PIL import Image

from compoclip.analysis.maps import PatchMaps, patch_maps, small_overlay
from compoclip.analysis.probe import Scored, candidates_of, score_candidates
from compoclip.captions.graph import graph_tree
from compoclip.captions.parser import parse
from compoclip.captions.types import SceneGraph
from compoclip.errors import CompoclipError, UsageError
from compoclip.models.checkpoint import LoadedModel
from compoclip.version import __version__
from compoclip.web.app import Page, Website
from compoclip.web.images import MAX_IMAGE, RequestImages

# --- What a page may send, checked before anything is computed. ---

MAX_TEXT = 300  # characters of a caption
MAX_BODY = MAX_IMAGE * 4 // 3 + 20_000  # of a request: the image in base64, and the rest


def caption_of(data: Mapping[str, Any]) -> str:
    """The caption, blanks tidied. Raises UsageError when there is none or it is too long."""
    text = data.get("caption")
    if not isinstance(text, str):
        raise UsageError("'caption' is missing: send the caption as a string")
    if len(text) > MAX_TEXT:
        raise UsageError(f"the caption has {len(text)} characters; at most {MAX_TEXT} are allowed")
    tidy = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not tidy:
        raise UsageError("the caption is empty; type one")
    return tidy


def image_of(data: Mapping[str, Any]) -> Image.Image:
    """The RGB image in "image": an encoded image file in base64, or a data URI of one.

    Raises UsageError when it is missing, too large in bytes or pixels, or no image.
    """
    text = data.get("image")
    if not isinstance(text, str):
        raise UsageError("'image' is missing: send the image file in base64")
    return RequestImages().read(text)


# --- Answers. ---

_SIDE = 320  # pixels of the longer side of an overlay


@dataclass(frozen=True)
class Example:
    """A picture (PNG) to try, with a caption that is true of it."""

    caption: str
    png: bytes


@dataclass(frozen=True)
class Playground:
    """Models by name, at most two, and examples."""

    models: Mapping[str, LoadedModel]
    examples: Sequence[Example] = ()

    def info(self) -> dict[str, Any]:
        """The facts that the page shows before anything is asked."""
        return {
            "version": __version__,
            "models": [
                {"name": name, "architecture": each.identity.architecture}
                for name, each in self.models.items()
            ],
            "examples": [each.caption for each in self.examples],
            "limits": {"image_bytes": MAX_IMAGE, "caption_characters": MAX_TEXT},
        }

    def score(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Scores of the caption and its rewrites by every model, and the caption's scene graph.

        request: image (base64), caption. Raises UsageError for what is wrong in it.
        """
        text = caption_of(request)
        image = image_of(request)
        caption = parse(text)
        candidates, refused = candidates_of(caption)
        texts = [each.text for each in candidates]
        models = []
        for name, model in self.models.items():
            scored = score_candidates(model, image, candidates)
            models.append(
                {
                    "name": name,
                    "candidates": [_record(each) for each in scored],
                    "flips": sum(s.flip for s in scored if s.candidate.kind == "negative"),
                    "negatives": sum(s.candidate.kind == "negative" for s in scored),
                    "truncated": model.tokenizer.truncated(texts),
                }
            )
        graph = _graph_record(caption.graph or SceneGraph())
        return {"caption": text, "graph": graph, "refused": refused, "models": models}

    def maps(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Every word's token-patch map by every model, as PNG overlays in data URIs.

        request: as for `score`. A model without patch features has an "error" instead of words.
        """
        text = caption_of(request)
        image = image_of(request)
        models: list[dict[str, Any]] = []
        for name, model in self.models.items():
            try:
                maps = patch_maps(model, image, text)
            except CompoclipError as error:
                models.append({"name": name, "error": str(error)})
                continue
            models.append({"name": name, **_maps_record(maps, image)})
        return {"caption": text, "models": models}


def _graph_record(graph: SceneGraph) -> dict[str, Any]:
    """Objects in caption order with their attributes, relations between them by place, and the
    same as lines of text."""
    return {
        "objects": [
            {"name": node.name, "attributes": [each.name for each in node.attributes]}
            for node in graph.objects
        ],
        "relations": [
            {"subject": each.subject, "words": each.words or each.name, "object": each.object}
            for each in graph.relations
        ],
        "lines": graph_tree(graph),
    }


def _record(each: Scored) -> dict[str, Any]:
    candidate = each.candidate
    return {
        "text": candidate.text,
        "kind": candidate.kind,
        "made_by": list(candidate.made_by),
        "changed": [[e.new_start, e.new_end] for e in candidate.edits if e.new_end > e.new_start],
        "cosine": round(each.cosine, 6),
        "flip": each.flip,
    }


def _maps_record(maps: PatchMaps, image: Image.Image) -> dict[str, Any]:
    words = [
        {
            "word": each.word,
            "cosine": round(each.cosine, 4),
            "overlay": _png_uri(small_overlay(image, each.attention, maps.region, _SIDE)),
        }
        for each in maps.words
    ]
    return {"grid": list(maps.grid), "words": words, "left_out": list(maps.left_out)}


def _png_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


# --- The website. ---

_PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/graph.js": ("graph.js", "text/javascript; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def play_site(
    playground: Playground, host: str = "127.0.0.1", names: Sequence[str] = ()
) -> Website:
    """Make the website of a `Playground`.

    Requests are answered one after the other, since they share the models.

    Args:
        playground: Models and examples.
        host: Address to serve at.
        names: Further names that requests may call the server by.

    Returns:
        The website, to be served by a `Server`.
    """
    folder = files("compoclip.web") / "page"
    pages: dict[str, Page] = {
        path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _PAGE.items()
    }
    info = json.dumps(playground.info(), ensure_ascii=False)
    pages["/api/info"] = (info.encode("utf-8", "backslashreplace"), "application/json")
    for number, example in enumerate(playground.examples):
        pages[f"/examples/{number}.png"] = (example.png, "image/png")
    return Website(
        pages,
        {"/api/score": playground.score, "/api/maps": playground.maps},
        host=host,
        names=names,
        verb="play",
        wanted="image and caption",
        body=MAX_BODY,
        threads=1,
    )
