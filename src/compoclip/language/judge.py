"""Checks of texts written by a language model.

`rewrites.written` has the rules on meaning, which `train` applies again to positives; here are
the rules on the form of chat models' answers and on each task's request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from compoclip.captions.clip_text import fits_context, token_key
from compoclip.captions.parser import parse
from compoclip.captions.types import Caption
from compoclip.language.engine import PromptTask
from compoclip.rewrites.edit import EMPTY, SAME_TOKENS, TOO_LONG
from compoclip.rewrites.written import (
    CONTRADICTS,
    KEEPS_MEANING,
    OTHER_WORDS,
    TOO_MANY_WORDS,
    conflicting_attributes,
    difference,
    form_objection,
    negative_objection,
    paraphrase_objection,
    positive_objection,
)

# --- The texts in a model's answer: plain lines, numbered lists, quotes, JSON, with or without
# talk. ---
#
# Chat models wrap what was asked for in many ways. Reading is generous here; whether a text is any
# good is for `judge` to say.

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
    """Return the texts in a model's answer (lines, lists, quotes or JSON) without talk around them.

    Args:
        answer: The answer.
        cut_off: Whether it ended at the token limit, so that its last line or string is a fragment.
    """
    text = _THOUGHT.sub("", answer).strip()
    fenced = _FENCE.search(text)
    if fenced and fenced.group(1).strip():
        text = fenced.group(1).strip()
    texts = _json(text)
    if texts is None:
        lines = [line for line in map(str.strip, text.splitlines()) if line]
        texts = lines[:-1] if cut_off else lines
        if len(texts) > 1:  # "Sure, here you are:"
            texts = [line for line in texts if not line.rstrip("*").endswith(":")]
    cleaned = (_clean(line) for line in texts)
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
        strings = []  # of what is broken the complete strings that are no keys
        for match in _STRING.finditer(text):
            if text[match.end() :].lstrip()[:1] != ":":
                with suppress(ValueError):
                    strings.append(json.loads(match.group()))
        return strings
    return _strings(value)


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for element in value for text in _strings(element)]
    return [value] if isinstance(value, str) else []


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


# --- Judging them. ---

#: Raise it whenever a text may be judged otherwise than before.
RULES_VERSION = "3"
REFUSAL, NONE, ECHO, REPEATED = "refusal", "answers-none", "echoes-the-prompt", "repeated"
NO_VERB, NO_PREPOSITION = "no-verb-changed", "no-preposition-changed"
WORDS_CHANGED = "words-changed"
TOO_FEW_WORDS = "too-few-words"
#: Words of a dense sentence, least and most.
SENTENCE = (3, 34)
_ECHOED_WORDS = 6

_REFUSAL = re.compile(
    r"(?:(?:i'?m|i am|we are)\s+(?:so |very |really )?(?:sorry|unable|not able|afraid)"
    r"|sorry[,.!]|i (?:cannot|can'?t|can not|could ?n[o']t|won'?t|will not|must decline)\b"
    r"|i apologi[sz]e|my apologies|unfortunately,? i\b|as an? (?:ai|language model|assistant)\b"
    r"|i'?m (?:just )?an? (?:ai|language model)\b"
    r"|(?:this|that|your) (?:request|sentence) (?:violates|is not)"
    r"|(?:please|could you) provide\b|it (?:is|'s) not possible)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Judged:
    """The texts of the answers to one caption: those to use, and (text, reason) of the others."""

    accepted: tuple[str, ...]
    rejected: tuple[tuple[str, str], ...]


def judge_answers(task: PromptTask, caption: str, answers: Iterable[tuple[str, bool]]) -> Judged:
    """Extract and check the texts in the answers to a caption."""
    parsed = parse(caption)
    accepted: list[str] = []
    rejected: list[tuple[str, str]] = []
    taken: set[tuple[str, ...]] = set()
    for answer, cut_off in answers:
        if len(accepted) == task.max_texts:
            break
        texts = texts_of(answer, cut_off=cut_off)
        # Of an answer that should be one text, what follows it is talk.
        judged = ((text, _objection(task, parsed, text)) for text in texts)
        pairs: Iterable[tuple[str, str | None]] = (
            islice(judged, 1) if task.max_texts == 1 else judged
        )
        if _declines(answer, caption):
            pairs = [(answer.strip(), REFUSAL)]
        elif not texts:
            pairs = [(answer.strip(), TOO_LONG if cut_off else EMPTY)]
        for text, reason in pairs:
            if reason is None and token_key(text) in taken:
                reason = REPEATED
            if reason is not None:
                rejected.append((text, reason))
                continue
            taken.add(token_key(text))
            accepted.append(text)
            if len(accepted) == task.max_texts:
                break
    return Judged(tuple(accepted), tuple(rejected))


def _objection(task: PromptTask, caption: Caption, text: str) -> str | None:
    if text.strip(" .").lower() in ("none", "n/a", "null"):
        return NONE
    if _declines(text, caption.text):
        return REFUSAL
    if _echoes(task, caption.text, text):
        return ECHO
    if task.gives == "sentences":  # about the image of the caption
        words, (low, high) = len(text.split()), SENTENCE
        if not low <= words <= high:
            return TOO_FEW_WORDS if words < low else TOO_MANY_WORDS
        if token_key(text) == token_key(caption.text):
            return SAME_TOKENS
        if not fits_context(text):
            return TOO_LONG
        return CONTRADICTS if conflicting_attributes(caption, parse(text)) else None
    if reason := form_objection(caption.text, text):
        return reason
    written = parse(text)
    if task.change == "paraphrase":
        return paraphrase_objection(caption, written)
    rule = positive_objection if task.gives == "positive" else negative_objection
    return rule(caption, written) or _asked_for(task, caption, written)


def _declines(text: str, caption: str) -> bool:
    """Return whether a text declines to answer in words that the caption does not begin with."""
    return bool(_REFUSAL.match(text.strip())) and not _REFUSAL.match(caption.strip())


def _asked_for(task: PromptTask, caption: Caption, written: Caption) -> str | None:
    """Why a text does not make the change that the task asks for, or None."""
    change = difference(caption, written)
    words = [*change.lost, *change.gained]
    match task.change:
        case "swap":
            return WORDS_CHANGED if words else None if change.moved else KEEPS_MEANING
        case "replace":
            return None if words or change.lost_links else OTHER_WORDS
        case "verb":
            return None if any(token.pos == "VERB" for token in words) else NO_VERB
        case "spatial":
            return None if change.lost_links and change.gained_links else NO_PREPOSITION
    return None


def _echoes(task: PromptTask, caption: str, text: str) -> bool:
    """Return whether the text repeats a run of words of the prompt, or one of its examples."""
    low = _plain(text)
    if any(low in (_plain(one), _plain(other)) for one, other in task.examples):
        return not any(_plain(caption) == _plain(one) for one, _ in task.examples)
    prompt = f" {_plain(task.instruction)} "
    words = low.split()
    runs = (" ".join(words[i : i + _ECHOED_WORDS]) for i in range(len(words) - _ECHOED_WORDS + 1))
    return any(f" {run} " in prompt for run in runs)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
