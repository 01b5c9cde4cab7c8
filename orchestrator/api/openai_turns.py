"""From a request in OpenAI's form to a turn: its thread, its message, and the approvals that it answers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chordage.orchestrator import views
from chordage.orchestrator.api.callers import as_caller, decide_as, require
from chordage.orchestrator.api.faces import AnsweredCalls, answered_calls, plain_yes
from chordage.orchestrator.api.openai_bodies import (
    ChatRequest,
    InputMessage,
    OpenAIRequest,
    ResponseRequest,
    chat_input,
    quotation,
    response_input,
    text_of,
)
from chordage.orchestrator.api.openai_errors import OpenAIRefusal
from chordage.orchestrator.api.services import SOURCE, Services
from chordage.orchestrator.core import message
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.client_tools import FIELD as CLIENT_TOOLS
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, NotFound
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.text import NAME_MAX
from chordage.orchestrator.views import TurnView
from chordage.orchestrator.views.lookups import call_above

PREFIX = "resp_"
META = "openai"  # where a turn keeps what its response repeats
_TARGET = re.compile(r"[0-9A-Za-z-]{1,200}")
_ID = re.compile(r"resp_[0-9A-Za-z-]{1,190}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What became of a request. `since`: the questions it answers, and their calls."""

    turn_id: str
    thread_id: str
    created_at: int
    echo: Mapping[str, Any] = field(default_factory=dict)
    since: frozenset[str] = frozenset()


def take_chat(services: Services, caller: Caller, body: ChatRequest, key: str | None, thread: str | None) -> Taken:
    thread = thread or (body.metadata or {}).get("thread_id")
    given = chat_input(body)
    answered = answered_calls(services, given.results, space=caller.reach)
    if given.results and not given.has_news:
        return _continue(services, caller, answered)
    thread = thread or _thread_of(answered)
    said = given.messages
    is_known = len(said) > 1 and _is_known(services, caller, thread)
    text, preface = text_of(said, "messages", is_known=is_known, all_new=False)
    decisions = answered.decisions(only_open=True)
    return _submit(services, caller, body, key, text=text, preface=preface, thread=thread, decisions=decisions)


def take_response(
    services: Services, caller: Caller, body: ResponseRequest, key: str | None, thread: str | None
) -> Taken:
    given = response_input(body)
    if given.decisions:
        require(caller, KeyScope.DECIDE, "an answer to an approval")
        given = replace(given, decisions=tuple(_with_payload(services, each) for each in given.decisions))
    thread = body.thread or thread or (body.metadata or {}).get("thread_id")
    previous, key = body.previous_response_id or given.compacted, key or (body.metadata or {}).get("dedupe_key")
    answered = answered_calls(services, given.results, space=caller.reach)
    if given.results and not given.has_news:
        return _continue(services, caller, answered, given.decisions)
    if given.decisions and not given.has_news:
        turn = _deciding_on(services, caller, previous, thread)
        return _decide(services, caller, given.decisions, turn)
    thread = thread or _thread_of(answered)
    if previous is not None:
        thread = _continued(services, caller, previous, key).thread_id
    is_known = previous is not None or (len(given.messages) > 1 and _is_known(services, caller, thread))
    text, preface = text_of(given.messages, "input", is_known=is_known, all_new=previous is not None)
    if body.instructions:
        preface = quotation([InputMessage(role="developer", text=body.instructions)]) + preface
    return _submit(
        services, caller, body, key, text=text, preface=preface, thread=thread,
        decisions=given.decisions + answered.decisions(only_open=True),
        echo={"instructions": body.instructions, "previous_response_id": body.previous_response_id},
    )  # fmt: skip


def _submit(
    services: Services,
    caller: Caller,
    body: OpenAIRequest,
    key: str | None,
    *,
    text: str,
    preface: str,
    thread: str | None,
    decisions: tuple[DecisionRequest, ...] = (),
    echo: Mapping[str, Any] | None = None,
) -> Taken:
    agent, metadata = body.agent(), body.metadata or {}
    if not text.strip():
        param = "messages" if isinstance(body, ChatRequest) else "input"
        raise OpenAIRefusal("the message is blank: say something", code="invalid_value", param=param)
    kept = {**(echo or {}), "metadata": metadata, "preface": len(preface)}
    request = TurnRequest(
        message=Message(
            origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=thread, text=preface + text,
            meta={META: {name: value for name, value in kept.items() if value}},
        ),
        agent=agent, source=SOURCE, space=caller.space,
        dedupe_key=key or metadata.get("dedupe_key"), decisions=decisions, client_tools=body.client_tools(),
    )  # fmt: skip
    try:
        admitted = services.accept(as_caller(services, request, caller))
    except InvalidMessage as error:
        if error.field != CLIENT_TOOLS:
            raise
        raise OpenAIRefusal(str(error), code="invalid_value", param="tools") from error
    return Taken(
        turn_id=admitted.turn_id, thread_id=admitted.thread_id, created_at=int(time.time()),
        echo={**(echo or {}), "metadata": metadata, "conversation": {"id": admitted.thread_id}},
    )  # fmt: skip


# Approvals, and results of the caller's tools.


def _continue(
    services: Services, caller: Caller, answered: AnsweredCalls, decisions: tuple[DecisionRequest, ...] = ()
) -> Taken:
    """The turn whose calls the caller has carried out."""
    if unknown := sorted(answered.results.keys() - answered.places.keys()):
        raise NotFound(f"no call {unknown[0][:80]!r} waits for a result of its caller, or did")
    turn_ids = answered.turn_ids
    if len(turn_ids) > 1:
        raise Conflict("the results are of calls of several turns: send those of each turn by themselves")
    turn = services.turn(turn_ids[0], space=caller.reach)
    return _decide(services, caller, (*decisions, *answered.decisions()), turn)


def _thread_of(answered: AnsweredCalls) -> str | None:
    return next((place.thread_id for place in answered.places.values()), None)


def _deciding_on(services: Services, caller: Caller, previous: str | None, thread: str | None) -> TurnView:
    """The turn that waits for the answers."""
    if previous is not None:
        return turn_of(services, previous, caller)
    if thread is None:
        problem = "say which response asked for the approvals: give previous_response_id"
        raise OpenAIRefusal(problem, code="missing_required_parameter", param="previous_response_id")
    thread_id = message.placed(caller.space, thread)
    if not _is_name(thread) or (last := _last_turn(services, thread_id)) is None:
        raise NotFound(f"there is no thread {thread!r}")
    return services.turn(last, space=caller.reach)


def _decide(services: Services, caller: Caller, decisions: tuple[DecisionRequest, ...], turn: TurnView) -> Taken:
    stored = decide_as(services, list(decisions), caller)
    decided = [each for each in stored if not each.duplicate] or stored  # a client may repeat older results
    above = [call_above(services.rt.store, each.run_id, turn.run_id) or each.call_id for each in decided]
    asked = [name for each in decided for name in (each.suspension_id, each.call_id)]
    return Taken(
        turn_id=turn.turn_id, thread_id=turn.thread_id, created_at=int(turn.queued_at.timestamp()),
        echo=echo_of(turn), since=frozenset([*asked, *above]),
    )  # fmt: skip


def _with_payload(services: Services, decision: DecisionRequest) -> DecisionRequest:
    """The protocol has no word for an answer but yes and no. A question may want a yes that is written out."""
    if decision.action is Action.CANCEL or not _TARGET.fullmatch(decision.target):
        return decision
    return replace(decision, payload=plain_yes(_schema(services, decision.target)))


def _schema(services: Services, target: str) -> dict[str, Any] | None:
    return views.schema_asked(services.rt.store, target)


# Threads and turns.


def turn_of(services: Services, response_id: str, caller: Caller) -> TurnView:
    if not _ID.fullmatch(response_id):
        raise NotFound(f"there is no response {response_id[:80]!r}")
    try:
        return services.turn(response_id.removeprefix(PREFIX), space=caller.reach)
    except NotFound as error:
        raise NotFound(f"there is no response {response_id!r}") from error


def kept(turn: TurnView) -> Mapping[str, Any]:
    value = turn.meta.get(META)
    return value if isinstance(value, dict) else {}


def echo_of(turn: TurnView) -> dict[str, Any]:
    """What a response repeats of its request."""
    names = ("instructions", "previous_response_id", "metadata")
    named = {name: value for name, value in kept(turn).items() if name in names}
    return {**named, "conversation": {"id": turn.thread_id}}


def _continued(services: Services, caller: Caller, previous: str, key: str | None) -> TurnView:
    """The turn that the new one follows. Of two that follow the same turn, the second is refused: that would be another
    history. The same request under the same key is no second one.
    """
    turn = turn_of(services, previous, caller)
    last = _last_turn(services, turn.thread_id)
    if last is not None and last != turn.turn_id:
        newer = services.turn(last, space=caller.reach)
        if key is None or newer.dedupe_key != key:
            problem = f"{previous} is not the last of its thread any more, {PREFIX}{last} is: continue that one"
            raise Conflict(problem)
    return turn


def _last_turn(services: Services, thread_id: str) -> str | None:
    lines = views.turns(services.rt.store, thread_id=thread_id, limit=1)
    return lines[0].turn_id if lines else None


def _is_known(services: Services, caller: Caller, thread: str | None) -> bool:
    """Whether the thread has a history already."""
    if thread is None or not _is_name(thread):
        return False
    return _last_turn(services, message.placed(caller.space, thread)) is not None


def _is_name(thread: str) -> bool:
    """What cannot be one is not looked for. The engine says why when it is used."""
    return 0 < len(thread) <= NAME_MAX + len(PREFIX) * 20 and thread.isprintable()
