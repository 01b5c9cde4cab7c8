"""Two runs side by side: their messages, replies and calls, and where they first differ.

The n-th reply of one is beside the n-th of the other, and a call beside the one at its place in the round: the numbers
of steps differ where one of the two has waited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.runs import InferenceStep, RunView, ToolRound


class MomentKind(StrEnum):
    MESSAGE = "message"
    REPLY = "reply"
    CALL = "call"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedMoment:
    """One side of a row. `step`: 0 is the message."""

    step: int
    name: str
    text: str | None = None
    arguments: dict[str, Any] | None = None
    content: str | None = None
    state: str = ""
    code: str | None = None
    is_recorded: bool = False  # repeated, or answered from the record


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """`differs`: in these words; empty where both are the same. `is_first`: no row above it differs."""

    kind: MomentKind
    number: int  # of the reply it belongs to, from 1; 0: the message
    first: ComparedMoment | None
    second: ComparedMoment | None
    differs: tuple[str, ...] = ()
    is_first: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`versions`: the digests of the agent with which each of the two started and asked the model; null where they are
    the same, or not known of one of them.
    """

    rows: tuple[ComparedRow, ...]
    versions: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    @property
    def first_difference(self) -> ComparedRow | None:
        return next((row for row in self.rows if row.is_first), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    reply: InferenceStep
    calls: tuple[CallView, ...] = field(default=())


def compare(first: RunView, second: RunView, messages: tuple[str, str]) -> Comparison:
    """`messages`: the texts that the two began with."""
    rows = list(_rows(first, second, messages))
    differing = next((place for place, row in enumerate(rows) if row.differs), None)
    versions = (_versions(first), _versions(second))
    return Comparison(
        versions=versions if all(versions) and versions[0] != versions[1] else None,
        rows=tuple(
            ComparedRow(
                kind=row.kind, number=row.number, first=row.first, second=row.second, differs=row.differs,
                is_first=place == differing,
            )
            for place, row in enumerate(rows)
        )
    )  # fmt: skip


def _versions(run: RunView) -> tuple[str, ...]:
    """Each once, as they came."""
    of_replies = (step.agent_digest for step in run.steps if isinstance(step, InferenceStep))
    return tuple(dict.fromkeys(digest for digest in (run.agent_digest, *of_replies) if digest is not None))


def _rows(first: RunView, second: RunView, messages: tuple[str, str]) -> Iterator[ComparedRow]:
    ours, theirs = (ComparedMoment(step=0, name="message", text=text) for text in messages)
    differs = () if messages[0] == messages[1] else ("message",)
    yield ComparedRow(kind=MomentKind.MESSAGE, number=0, first=ours, second=theirs, differs=differs)
    for number, (one, other) in enumerate(zip_longest(_rounds(first), _rounds(second)), 1):
        yield _reply_row(number, one, other)
        calls = zip_longest(one.calls if one else (), other.calls if other else ())
        for mine, its in calls:
            yield _call_row(number, (one, mine), (other, its))


def _rounds(run: RunView) -> list[_Round]:
    """Calls are listed with the step behind their reply."""
    calls = {step.number: step.calls for step in run.steps if isinstance(step, ToolRound)}
    replies = [step for step in run.steps if isinstance(step, InferenceStep)]
    return [_Round(reply=reply, calls=calls.get(reply.number + 1, ())) for reply in replies]


def _reply_row(number: int, one: _Round | None, other: _Round | None) -> ComparedRow:
    first, second = _reply(one), _reply(other)
    differs: tuple[str, ...]
    if one is None or other is None:
        differs = ("only here",)
    else:
        pairs = {
            "text": (one.reply.text or "", other.reply.text or ""),
            "model": (one.reply.model, other.reply.model),
            "calls": (one.reply.asks, other.reply.asks),
            "end": (one.reply.stop, other.reply.stop),
        }
        differs = tuple(name for name, (mine, its) in pairs.items() if mine != its)
    return ComparedRow(kind=MomentKind.REPLY, number=number, first=first, second=second, differs=differs)


def _call_row(
    number: int, mine: tuple[_Round | None, CallView | None], its: tuple[_Round | None, CallView | None]
) -> ComparedRow:
    (one, first), (other, second) = mine, its
    return ComparedRow(
        kind=MomentKind.CALL, number=number, first=_call(one, first), second=_call(other, second),
        differs=_call_differs(first, second),
    )  # fmt: skip


def _call_differs(first: CallView | None, second: CallView | None) -> tuple[str, ...]:
    if first is None or second is None:
        return ("only here",)
    pairs: dict[str, tuple[Any, Any]] = {
        "tool": (first.tool, second.tool),
        "arguments": (first.arguments, second.arguments),
    }
    # A recorded result may name its call: then it is the same one in other letters.
    if second.answered_from != first.id and first.answered_from != second.id:
        pairs["result"] = ((first.status, first.code, first.content), (second.status, second.code, second.content))
    return tuple(name for name, (ours, theirs) in pairs.items() if ours != theirs)


def _reply(one: _Round | None) -> ComparedMoment | None:
    if one is None:
        return None
    reply = one.reply
    return ComparedMoment(
        step=reply.number, name=reply.model or "model", text=reply.text, state=reply.status.value,
        is_recorded=reply.is_repeated,
    )  # fmt: skip


def _call(one: _Round | None, call: CallView | None) -> ComparedMoment | None:
    if one is None or call is None:
        return None
    return ComparedMoment(
        step=one.reply.number, name=call.tool, arguments=call.arguments, content=call.content, state=call.status.value,
        code=call.code, is_recorded=call.answered_from is not None,
    )  # fmt: skip
