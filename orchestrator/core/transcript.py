"""From rows to prompt: every ask of an assistant message has exactly one result, directly behind it.

Also how replies and messages are written into the journal and read from it, and which entries a summary replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from chordage.orchestrator.core import client_messages
from chordage.orchestrator.core.model import (
    COUNTS,
    AssistantSays,
    Attempt,
    Reply,
    Said,
    StopReason,
    ToolAsk,
    ToolSays,
    Usage,
    UserSays,
)
from chordage.orchestrator.core.records import Answer, Call, Checkpoint, Entry, Turn
from chordage.orchestrator.core.status import CallStatus

NOT_RUN = "This call did not run and has no result."
OUTCOME_UNKNOWN = "outcome_unknown"
UNFINISHED = (
    "This call had started when its run ended. It is not known whether it took effect, and it is not run again."
)
INTERRUPTED = "[The work on the message above ended before it was done"
ACTION_RESULTS = "[ACTION RESULTS]"  # the message that shows the results of plans before the answer
REFUSED = "[Your answer above was not accepted, because it is not the output that is demanded"
SUMMARY = "[Summary of the conversation up to here"
_BEGUN = " What is said next is part of it, word for word: what the summary tells of the work on that has been done."
DECIDED = "[A decision has come: what came of it stands above, where the call was made.]"
NOT_STARTED = "This call has not been executed yet: it comes after one that awaits a decision."
AWAITING = "This call has not been executed: it awaits a decision."

AnyCall = Answer | Call

COMPACTION_KINDS = frozenset({Checkpoint.COMPACTED, Checkpoint.COMPACTION_FAILED})


def build(entries: Sequence[Entry], calls: Iterable[AnyCall]) -> tuple[Said, ...]:
    """The history of a thread as the model is to see it.

    Results follow the message that asked for them, in the order of its asks; the newest summary replaces what came
    before it.
    """
    by_step: dict[tuple[str, int], dict[int, AnyCall]] = {}
    for call in calls:
        by_step.setdefault((call.run_id, call.step), {})[call.place] = call
    summary, entries = current_summary(entries)
    messages: list[Said] = _summary(summary.body) if summary else []
    waits = False  # behind a reply, and the model has not read yet that the wait is over
    for entry in entries:
        by_place = by_step.get((entry.run_id, entry.step + 1), {})
        match entry.kind:
            case Checkpoint.USER_MESSAGE:
                messages.extend(_decided(waits=waits))
                waits = False
                messages.append(UserSays(text=message_text(entry.body)))
            case Checkpoint.ASSISTANT_TURN:
                messages.extend(_decided(waits=waits))
                waits = False
                messages.extend(_exchange(entry, by_place))
            case Checkpoint.CLIENT_MESSAGES:
                messages = [] if entry.body["replaces"] else messages
                messages.extend(client_messages.said(entry.body["messages"], by_place, _result))
                waits = False
            case Checkpoint.CLIENT_STEERS:
                messages.extend(UserSays(text=text) for text in entry.body["texts"])
                waits = False
            case Checkpoint.RUN_INTERRUPTED:
                waits = False
                messages.append(UserSays(text=_interrupted(entry.body)))
            case Checkpoint.OUTPUT_REFUSED:
                messages.append(UserSays(text=_refused(entry.body)))
            case Checkpoint.RUN_WAITING:
                waits = isinstance(messages[-1], AssistantSays)
            case _:
                pass  # results are read from the calls themselves, behind the message that asked
    return (*messages, *_decided(waits=waits))


def _summary(body: dict[str, Any]) -> list[Said]:
    """The summary, and word for word the messages of the run it was written in, because the work on them continues."""
    messages: list[Said] = [UserSays(text=message_text(message)) for message in body["said"]]
    begun = _BEGUN if messages else ""
    return [UserSays(text=f"{SUMMARY}, in place of its messages.{begun}]\n\n{body['summary']}"), *messages]


def _decided(*, waits: bool) -> list[Said]:
    """A prompt must not end with the model's own words, and the model has to learn that a result further up is new."""
    return [UserSays(text=DECIDED)] if waits else []


def client_tools(run_id: str, entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """What the messages of this run have brought, also those that a summary has kept: core/client_tools.py."""
    tools: list[dict[str, Any]] = []
    for entry in entries:
        if entry.run_id == run_id and entry.kind in {Checkpoint.USER_MESSAGE, Checkpoint.COMPACTED}:
            for message in entry.body.get("said") or (entry.body,):
                tools += message.get("client_tools") or ()
    return tools


def message_text(body: dict[str, Any]) -> str:
    """The text of a message, or where that is blank the text of its content parts."""
    if body["text"].strip():
        return str(body["text"])
    texts = [str(part["text"]) for part in body.get("parts") or () if isinstance(part, dict) and part.get("text")]
    return "\n".join(texts) or "(content without text)"


def _interrupted(body: dict[str, Any]) -> str:
    """What the model of the next turn has to know of a run that was cut off."""
    why = f": {body['detail']}" if body.get("detail") else ""
    ended = body.get("code") or body["reason"]
    return f"{INTERRUPTED} ({ended}{why}).]"


def _refused(body: dict[str, Any]) -> str:
    """What is wrong with the answer above, and what is wanted instead."""
    wanted = "Answer again with only the JSON value, whole and put right: no words around it, no code fence."
    return f"{REFUSED}:\n{body['why']}\n{wanted}]"


def is_note(said: Said) -> bool:
    """Whether the engine wrote this to the model, in the place of a user's words."""
    notes = (DECIDED, INTERRUPTED, REFUSED, ACTION_RESULTS, SUMMARY)
    return isinstance(said, UserSays) and said.text.startswith(notes)


def _exchange(entry: Entry, by_place: dict[int, AnyCall]) -> list[Said]:
    asks = tuple(ask_from(body) for body in entry.body.get("asks", ()))
    reply = AssistantSays(text=entry.body["text"], asks=asks, extra=entry.body.get("extra") or {})
    return [reply, *(_result(ask, by_place.get(place)) for place, ask in enumerate(asks))]


def _result(ask: ToolAsk, call: AnyCall | None) -> ToolSays:
    content = NOT_RUN
    match call.status if call else None:
        case CallStatus.SUCCEEDED:
            return ToolSays(ask_id=ask.id, name=ask.name, content=(call.content if call else "") or "")
        case CallStatus.FAILED | CallStatus.CANCELLED:
            content = (call.content if call else "") or NOT_RUN
        case CallStatus.SUSPENDED | CallStatus.RESUMING:
            content = AWAITING
        case CallStatus.NEW:
            content = NOT_STARTED
    return ToolSays(ask_id=ask.id, name=ask.name, content=content, is_error=True)


# Messages and replies, as the journal keeps them.


def message_of(turn: Turn) -> dict[str, Any]:
    body = {"text": turn.text, "turn": turn.id, "origin": turn.origin, "channel": turn.channel, "sender": turn.sender}
    more = {"parts": turn.meta.get("parts"), "client_tools": turn.client_tools}
    return body | {name: value for name, value in more.items() if value}


def body_of(reply: Reply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "asks": [{"id": ask.id, "name": ask.name, "arguments": ask.arguments, "raw": ask.raw} for ask in reply.asks],
        "stop": reply.stop.value,
        "model": reply.model,
        "extra": reply.extra,
        "usage": {name: getattr(reply.usage, name) for name in COUNTS},
        "attempts": attempts_of(reply.attempts),
        **({"reasoning": reply.reasoning} if reply.reasoning else {}),
    }


def attempts_of(attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """Every request that was made, with what it cost."""
    return [
        {
            "model": attempt.model,
            "seconds": round(attempt.seconds, 3),
            "fault": attempt.fault,
            "detail": attempt.detail,
            "tokens": [attempt.usage.input_tokens, attempt.usage.output_tokens],
            **({} if attempt.first_text is None else {"first_text": round(attempt.first_text, 3)}),
        }
        for attempt in attempts
    ]


def reply_from(body: dict[str, Any]) -> Reply:
    """A reply as it was, without its attempts."""
    return Reply(
        text=body["text"],
        asks=tuple(ask_from(ask) for ask in body["asks"]),
        stop=StopReason(body["stop"]),
        model=body["model"],
        usage=Usage(**body["usage"]),
        extra=body.get("extra") or {},
        reasoning=body.get("reasoning") or "",
    )


def ask_from(body: dict[str, Any]) -> ToolAsk:
    return ToolAsk(id=body["id"], name=body["name"], arguments=body["arguments"], raw=body.get("raw", ""))


# The summaries of a thread: the current one, and the entries that are still read in full.


def current_summary(entries: Sequence[Entry]) -> tuple[Entry | None, list[Entry]]:
    """The newest summary, which includes the older ones, and the entries that it does not replace.

    An entry without an id is not recorded yet, and not replaced.
    """
    summary = next((entry for entry in reversed(entries) if entry.kind is Checkpoint.COMPACTED), None)
    replaced = summary.body["upto"] if summary else 0
    return summary, [entry for entry in entries if entry.kind not in COMPACTION_KINDS and not 0 < entry.id <= replaced]


def compactions(entries: Sequence[Entry]) -> list[Entry]:
    """Every compaction and every failed one among the entries; the newest last."""
    return [entry for entry in entries if entry.kind in COMPACTION_KINDS]


def older_than(run_id: str, entries: Sequence[Entry]) -> list[Entry]:
    """What was said before this run. A summary that was written in it counts, without the run's messages behind it."""
    return [
        replace(entry, body={**entry.body, "said": []})
        if entry.kind is Checkpoint.COMPACTED and entry.run_id == run_id
        else entry
        for entry in entries
        if entry.run_id != run_id or entry.kind in COMPACTION_KINDS
    ]
