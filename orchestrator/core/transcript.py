"""From rows to prompt: every ask of an assistant message has exactly one answer, directly behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from chordage.orchestrator.core import client_messages
from chordage.orchestrator.core.model import (
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
UNKNOWN_TEXT = (
    "The worker died while this call was running. It is not known whether it took effect, and it was not run again."
)
INTERRUPTED = "[The work on the message above ended before it was done"
ACTION_RESULTS = "[ACTION RESULTS]"  # how the message begins that puts what was done before the answer
REFUSED = "[Your answer above was not accepted, because it is not the output that is demanded"
SUMMARY = "[Summary of the conversation up to here"
_BEGUN = " What is said next is part of it, word for word: what the summary tells of the work on that has been done."
DECIDED = "[A decision has come: what came of it stands above, where the call was made.]"
NOT_STARTED = "This call has not been executed yet: it comes after one that awaits a decision."
AWAITING = "This call has not been executed: it awaits a decision."

Told = Answer | Call
Calls = dict[tuple[str, int], list[Told]]


def build(entries: Sequence[Entry], calls: Iterable[Told]) -> tuple[Said, ...]:
    """The history of a thread as the model is to see it. Results stand where they were asked for, in the order
    asked; the newest summary stands for what came before it.
    """
    by_step: Calls = {}
    for call in calls:
        by_step.setdefault((call.run_id, call.step), []).append(call)
    summary, entries = standing(entries)
    said: list[Said] = _summed_up(summary.body) if summary else []
    waited = False  # behind a reply, and nobody has said yet that it is over
    for entry in entries:
        match entry.kind:
            case Checkpoint.USER_MESSAGE:
                said.extend(_news(waited=waited))
                waited = False
                said.append(UserSays(text=message_text(entry.body)))
            case Checkpoint.ASSISTANT_TURN:
                said.extend(_news(waited=waited))
                waited = False
                said.extend(_exchange(entry, by_step.get((entry.run_id, entry.step + 1), [])))
            case Checkpoint.CLIENT_MESSAGES:
                said = [] if entry.body["replaces"] else said
                said.extend(_given(entry, by_step.get((entry.run_id, entry.step + 1), [])))
                waited = False
            case Checkpoint.CLIENT_STEERS:
                said.extend(UserSays(text=text) for text in entry.body["texts"])
                waited = False
            case Checkpoint.RUN_INTERRUPTED:
                waited = False
                said.append(UserSays(text=_interrupted(entry.body)))
            case Checkpoint.OUTPUT_REFUSED:
                said.append(UserSays(text=_refused(entry.body)))
            case Checkpoint.RUN_WAITING:
                waited = isinstance(said[-1], AssistantSays)
            case _:
                pass  # the results are told from the calls themselves, behind the message that asked
    return (*said, *_news(waited=waited))


def _summed_up(body: dict[str, Any]) -> list[Said]:
    """The summary, and behind it what was said to the run that it was written in, word for word: the work on that goes
    on.
    """
    words: list[Said] = [UserSays(text=message_text(message)) for message in body["said"]]
    begun = _BEGUN if words else ""
    return [UserSays(text=f"{SUMMARY}, in place of its messages.{begun}]\n\n{body['summary']}"), *words]


def _news(*, waited: bool) -> list[Said]:
    """A prompt must not end with the model's own words, and it has to learn that there is something new further up."""
    return [UserSays(text=DECIDED)] if waited else []


def message_text(body: dict[str, Any]) -> str:
    """What was said: the text, or where that is blank the text of the content parts."""
    if body["text"].strip():
        return str(body["text"])
    texts = [str(part["text"]) for part in body.get("parts") or () if isinstance(part, dict) and part.get("text")]
    return "\n".join(texts) or "(content without text)"


def _interrupted(body: dict[str, Any]) -> str:
    """What the next turn's model has to know of one that was cut off."""
    why = f": {body['detail']}" if body.get("detail") else ""
    ended = body.get("code") or body["reason"]
    return f"{INTERRUPTED} ({ended}{why}).]"


def _refused(body: dict[str, Any]) -> str:
    """What is wrong with the answer above, and what is wanted instead."""
    wanted = "Answer again with only the JSON value, whole and put right: no words around it, no code fence."
    return f"{REFUSED}:\n{body['why']}\n{wanted}]"


def is_note(said: Said) -> bool:
    """Whether this is the engine's word to the model, which only stands where a user's words would."""
    notes = (DECIDED, INTERRUPTED, REFUSED, ACTION_RESULTS, SUMMARY)
    return isinstance(said, UserSays) and said.text.startswith(notes)


def _exchange(entry: Entry, calls: Sequence[Told]) -> list[Said]:
    asks = tuple(ask_from(body) for body in entry.body.get("asks", ()))
    says = AssistantSays(text=entry.body["text"], asks=asks, extra=entry.body.get("extra") or {})
    by_place = {call.place: call for call in calls}
    return [says, *(_answer(ask, by_place.get(place)) for place, ask in enumerate(asks))]


def _given(entry: Entry, calls: Sequence[Told]) -> Iterator[Said]:
    return client_messages.said(entry.body["messages"], {call.place: call for call in calls}, _answer)


def _answer(ask: ToolAsk, call: Told | None) -> ToolSays:
    match call.status if call else None:
        case CallStatus.SUCCEEDED:
            assert call is not None
            return ToolSays(ask_id=ask.id, name=ask.name, content=call.content or "")
        case CallStatus.FAILED | CallStatus.CANCELLED:
            assert call is not None
            return ToolSays(ask_id=ask.id, name=ask.name, content=call.content or NOT_RUN, is_error=True)
        case CallStatus.SUSPENDED | CallStatus.RESUMING:
            return ToolSays(ask_id=ask.id, name=ask.name, content=AWAITING, is_error=True)
        case CallStatus.NEW:
            return ToolSays(ask_id=ask.id, name=ask.name, content=NOT_STARTED, is_error=True)
        case _:
            return ToolSays(ask_id=ask.id, name=ask.name, content=NOT_RUN, is_error=True)


def message_of(turn: Turn) -> dict[str, Any]:
    """A message as the journal keeps it."""
    said = {"text": turn.text, "turn": turn.id, "origin": turn.origin, "channel": turn.channel, "sender": turn.sender}
    return {**said, "parts": turn.meta["parts"]} if turn.meta.get("parts") else said


def body_of(reply: Reply) -> dict[str, Any]:
    """A reply as the journal keeps it."""
    return {
        "text": reply.text,
        "asks": [{"id": a.id, "name": a.name, "arguments": a.arguments, "raw": a.raw} for a in reply.asks],
        "stop": reply.stop.value,
        "model": reply.model,
        "extra": reply.extra,
        "usage": asdict(reply.usage),
        "attempts": attempts_of(reply.attempts),
    }


def attempts_of(attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """Every request that was made, with what it cost."""
    return [
        {
            "model": a.model,
            "seconds": round(a.seconds, 3),
            "fault": a.fault,
            "detail": a.detail,
            "tokens": [a.usage.input_tokens, a.usage.output_tokens],
        }
        for a in attempts
    ]


def ask_from(body: dict[str, Any]) -> ToolAsk:
    return ToolAsk(id=body["id"], name=body["name"], arguments=body["arguments"], raw=body.get("raw", ""))


def reply_from(body: dict[str, Any]) -> Reply:
    """A reply as it was, but for the attempts it took."""
    return Reply(
        text=body["text"], asks=tuple(ask_from(ask) for ask in body["asks"]), stop=StopReason(body["stop"]),
        model=body["model"], usage=Usage(**body["usage"]), extra=body.get("extra") or {},
    )  # fmt: skip


def stop_of(entry: Entry) -> StopReason:
    return StopReason(entry.body["stop"])


# What the journal of a thread says of its summaries: which of them stands, and what is still said in full.

TRIES = frozenset({Checkpoint.COMPACTED, Checkpoint.COMPACTION_FAILED})


def standing(entries: Sequence[Entry]) -> tuple[Entry | None, list[Entry]]:
    """The newest summary, and what it does not stand for: also what is not recorded yet, and has no id. An older one
    has become part of the newest.
    """
    summary = next((entry for entry in reversed(entries) if entry.kind is Checkpoint.COMPACTED), None)
    replaced = summary.body["upto"] if summary else 0
    return summary, [entry for entry in entries if entry.kind not in TRIES and not 0 < entry.id <= replaced]


def tries(entries: Sequence[Entry]) -> list[Entry]:
    """Every compaction there was, as far as it is still read; the newest last."""
    return [entry for entry in entries if entry.kind in TRIES]


def older_than(run_id: str, entries: Sequence[Entry]) -> list[Entry]:
    """What was said before this run. Of a summary written in it that is the summary, without the words behind it."""
    return [_without_words(entry, run_id) for entry in entries if entry.run_id != run_id or entry.kind in TRIES]


def _without_words(entry: Entry, run_id: str) -> Entry:
    is_own = entry.kind is Checkpoint.COMPACTED and entry.run_id == run_id
    return replace(entry, body={**entry.body, "said": []}) if is_own else entry
