"""What was said on the thread before the run, as its planner is told it: the words alone, and no more than it can use.

Calls and their results stay out: a planner is offered no tools to declare, and what matters of them was said in the
answer. The newest words come first when room is short; a summary that stands for older ones always has its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from chordage.orchestrator.core.model import AssistantSays, Said, UserSays
from chordage.orchestrator.core.records import Entry
from chordage.orchestrator.core.summaries import older_than
from chordage.orchestrator.core.transcript import DECIDED, SUMMARY, build

EACH = 8_000  # characters of one remark
IN_ALL = 40_000

Words = UserSays | AssistantSays


def told(entries: Sequence[Entry], run_id: str) -> tuple[Words, ...]:
    """Nothing, where the consumer of the run has given the history anew: what came before is not sent any more."""
    if any(entry.run_id == run_id and entry.body.get("replaces") for entry in entries):
        return ()
    return tuple(_newest(list(_words(build(older_than(run_id, entries), ())))))


def as_json(said: Iterable[Words]) -> list[dict[str, Any]]:
    return [{"role": "user" if isinstance(one, UserSays) else "assistant", "text": one.text} for one in said]


def _words(said: Iterable[Said]) -> Iterable[Words]:
    for one in said:
        match one:
            case UserSays(text=text) if text != DECIDED:
                yield UserSays(text=_short(text))
            case AssistantSays(text=text) if text.strip():
                yield AssistantSays(text=_short(text), asks=())


def _short(text: str) -> str:
    return text if len(text) <= EACH else f"{text[:EACH]}… ({len(text)} characters)"


def _newest(said: Sequence[Words]) -> list[Words]:
    """It begins with a user's words, as every provider wants it."""
    first = 1 if said and said[0].text.startswith(SUMMARY) else 0
    left, at = IN_ALL - sum(len(one.text) for one in said[:first]), len(said)
    while at > first and len(said[at - 1].text) <= left:
        at -= 1
        left -= len(said[at].text)
    while at > first and at < len(said) and isinstance(said[at], AssistantSays) and not first:
        at += 1
    return [*said[:first], *said[at:]]
