"""The texts in a model's answer: plain lines, numbered lists, quotes, JSON, with or without talk.

Chat models wrap what was asked for in many ways. Reading is generous here; whether a text is any
good is for `judge` to say.
"""

from __future__ import annotations

import json
import re
from typing import Any

_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```[\w-]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)+"')
_BULLET = re.compile(r"(?:\(?\d{1,2}[.):]|[-*•–])\s+")
_LABEL = re.compile(
    r"(?:answer|output|caption|sentence|new sentence|rewritten(?: sentence)?|result|paraphrase"
    r"|negative|positive|version)(?: \d+)?\s*:\s*",
    re.IGNORECASE,
)
_TALK = re.compile(
    r"(?:\(?\s*(?:note|explanation|i (?:replaced|changed|swapped|exchanged))\b)", re.I
)
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "`": "`"}


def texts_of(answer: str, *, cut_off: bool = False) -> list[str]:
    """The texts of an answer, in order.

    cut_off: the answer ended at the token limit, so that its last line or string is a fragment.
    """
    text = _THOUGHT.sub("", answer).strip()
    fenced = _FENCE.search(text)
    if fenced and fenced.group(1).strip():
        text = fenced.group(1).strip()
    found = _json(text)
    if found is None:
        lines = [line for line in map(str.strip, text.splitlines()) if line]
        found = lines[:-1] if cut_off else lines
        if len(found) > 1:  # "Sure, here you are:"
            found = [line for line in found if not line.rstrip("*").endswith(":")]
    cleaned = (_clean(line) for line in found)
    return [line for line in cleaned if line and not _TALK.match(line)]


def _json(text: str) -> list[str] | None:
    """The strings of JSON, whole or broken; None when the text is none."""
    if text[:1] not in ("[", "{", '"'):
        start = re.search(r'[\[{]\s*["{\[]', text)
        if start is None or ":" not in text[: start.start()]:
            return None
        text = text[start.start() :]  # behind "Here is the JSON:"
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        if text[0] == '"':
            return None
        return [json.loads(s) for s in _values(text)]
    return _strings(value)


def _values(text: str) -> list[str]:
    """The complete strings of broken JSON that are no keys."""
    found = []
    for match in _STRING.finditer(text):
        if text[match.end() :].lstrip()[:1] == ":":
            continue
        try:
            json.loads(match.group())
        except ValueError:
            continue
        found.append(match.group())
    return found


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for each in value for text in _strings(each)]
    return []


def _clean(line: str) -> str:
    """A line without its number, label, emphasis and quotes."""
    line = _BULLET.sub("", line.strip(), count=1) if _BULLET.match(line.strip()) else line.strip()
    line = line.strip("*").strip()
    label = _LABEL.match(line)
    if label:
        line = line[label.end() :].strip("* ")
    closing = _QUOTES.get(line[:1])
    if closing and len(line) > 1 and line.rstrip(".,").endswith(closing):
        line = line.rstrip(".,") if line[-1] != closing else line
        line = line[1:-1].strip()
    return " ".join(line.split())
