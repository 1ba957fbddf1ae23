"""Whether a text that a language model wrote may be used (METHODS 6, 7, 8, 9).

The rules on meaning are those of `rewrites.written`, which `train` applies again to positives; here
come those that concern how chat models answer, and what each task asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compoclip.captions.parse import parse
from compoclip.captions.types import Caption
from compoclip.language.answer import texts_of
from compoclip.language.task import Task
from compoclip.rewrites.meaning import conflicting_attributes, difference
from compoclip.rewrites.tokenkey import fits_context, token_key
from compoclip.rewrites.validity import EMPTY, SAME_TOKENS, TOO_LONG
from compoclip.rewrites.written import (
    CONTRADICTS,
    KEEPS_MEANING,
    OTHER_WORDS,
    TOO_MANY_WORDS,
    form_objection,
    negative_objection,
    paraphrase_objection,
    positive_objection,
)

#: Raise it whenever a text may be judged otherwise than before.
RULES_VERSION = "1"
REFUSAL, NONE, ECHO, REPEATED = "refusal", "answers-none", "echoes-the-prompt", "repeated"
NO_VERB, NO_PREPOSITION, WORDS_CHANGED = (
    "no-verb-changed",
    "no-preposition-changed",
    "words-changed",
)
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
    """The texts of the answers to one caption: those to use, and the others with the reason."""

    accepted: tuple[str, ...]
    rejected: tuple[tuple[str, str], ...]


def judge(task: Task, caption: str, answers: Iterable[tuple[str, bool]]) -> Judged:
    """Read and check the answers to a caption, in order; at most `task.most` texts are accepted.

    answers: each with whether it was cut off at the token limit.
    """
    parsed = parse(caption)
    accepted: list[str] = []
    rejected: list[tuple[str, str]] = []
    taken: set[tuple[str, ...]] = set()
    for answer, cut_off in answers:
        if len(accepted) == task.most:
            break
        for text, reason in _objections(task, parsed, answer, cut_off):
            if reason is None and token_key(text) in taken:
                reason = REPEATED
            if reason is not None:
                rejected.append((text, reason))
                continue
            taken.add(token_key(text))
            accepted.append(text)
            if len(accepted) == task.most:
                break
    return Judged(tuple(accepted), tuple(rejected))


def _objections(
    task: Task, caption: Caption, answer: str, cut_off: bool
) -> Iterator[tuple[str, str | None]]:
    """The texts of an answer that count, each with what is wrong with it."""
    if _REFUSAL.match(answer.strip()) and not _REFUSAL.match(caption.text.strip()):
        yield answer.strip(), REFUSAL
        return
    texts = texts_of(answer, cut_off=cut_off)
    if not texts:
        yield answer.strip(), TOO_LONG if cut_off else EMPTY
        return
    # Of an answer that should be one text, what follows it is talk.
    for text in texts[:1] if task.most == 1 else texts:
        yield text, _objection(task, caption, text)


def _objection(task: Task, caption: Caption, text: str) -> str | None:
    if text.strip(" .").lower() in ("none", "n/a", "null"):
        return NONE
    if _REFUSAL.match(text) and not _REFUSAL.match(caption.text):
        return REFUSAL
    if _echoes(task, caption.text, text):
        return ECHO
    if task.gives == "sentences":
        return _sentence_objection(caption, text)
    return form_objection(caption.text, text) or _meaning(task, caption, parse(text))


def _meaning(task: Task, caption: Caption, written: Caption) -> str | None:
    if task.change == "paraphrase":
        return paraphrase_objection(caption, written)
    rule = positive_objection if task.gives == "positive" else negative_objection
    return rule(caption, written) or _asked_for(task, caption, written)


def _asked_for(task: Task, caption: Caption, written: Caption) -> str | None:
    """Whether the text changes what the task says, by the words that are other."""
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


def _sentence_objection(caption: Caption, text: str) -> str | None:
    """What is wrong with one sentence about the image of a caption."""
    words = len(text.split())
    if words < SENTENCE[0]:
        return TOO_FEW_WORDS
    if words > SENTENCE[1]:
        return TOO_MANY_WORDS
    if token_key(text) == token_key(caption.text):
        return SAME_TOKENS
    if not fits_context(text):
        return TOO_LONG
    return CONTRADICTS if conflicting_attributes(caption, parse(text)) else None


def _echoes(task: Task, caption: str, text: str) -> bool:
    """Whether the text repeats a run of words of the prompt, or one of its examples."""
    low = _plain(text)
    if any(low in (_plain(one), _plain(other)) for one, other in task.examples):
        return not any(_plain(caption) == _plain(one) for one, _ in task.examples)
    prompt = f" {_plain(task.instruction)} "
    words = low.split()
    runs = (" ".join(words[i : i + _ECHOED_WORDS]) for i in range(len(words) - _ECHOED_WORDS + 1))
    return any(f" {run} " in prompt for run in runs)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
