"""Core values for tests: complete by themselves, so that a test names only what it is about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.model import Reply, StopReason, ToolAsk, Usage
from chordage.orchestrator.core.records import Call, Checkpoint, Entry, Phase, Run
from chordage.orchestrator.core.status import CallStatus, RunStatus

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

_MESSAGE = {"origin": Origin.INVOKE, "channel": None, "sender": Sender.SERVICE, "thread_id": None, "text": "hi"}
_RUN = {
    "id": "r", "thread_id": "t", "turn_id": "u", "agent": "ada", "group": Group.CHAT, "strategy": "react",
    "status": RunStatus.RUNNING, "reason": None, "code": None, "detail": None, "epoch": 1, "step": 1,
    "phase": Phase.INFERENCE, "rounds": 0, "resends": 0, "expiries": 0, "claim_token": None, "claim_worker": None,
    "lease_until": None, "usage": Usage(), "started_at": NOON, "ended_at": None, "in_flight": 0,
}  # fmt: skip
_CALL = {
    "id": "c", "run_id": "r", "thread_id": "t", "step": 2, "place": 0, "ask_id": "a", "generation": 1, "tool": "search",
    "arguments": {}, "effect": Effect.PURE, "status": CallStatus.SUCCEEDED, "code": None, "content": "found",
    "claim_token": None, "worker": None, "lease_until": None, "resends": 0, "expiries": 0, "started_at": None,
    "ended_at": None,
}  # fmt: skip


def a_request(**given: Any) -> TurnRequest:
    """Fields of the message and of the request around it, as they come."""
    message = {**_MESSAGE, **{name: given.pop(name) for name in [*_MESSAGE, "meta"] if name in given}}
    return TurnRequest(message=Message(**message), **given)


def a_run(**given: Any) -> Run:
    return Run(**{**_RUN, **given})


def a_call(**given: Any) -> Call:
    return Call(**{**_CALL, **given})


def an_ask(ask_id: str = "a", name: str = "search", **given: Any) -> ToolAsk:
    return ToolAsk(**{"id": ask_id, "name": name, "arguments": {}, **given})


def a_reply(stop: StopReason = StopReason.END, *asks: ToolAsk, text: str = "so be it") -> Reply:
    return Reply(text=text, asks=asks, stop=stop, model="fake")


def an_entry(number: int, kind: Checkpoint, body: dict[str, Any], **given: Any) -> Entry:
    return Entry(**{"id": number, "thread_id": "t", "run_id": "r", "step": 1, "kind": kind, "body": body, **given})
