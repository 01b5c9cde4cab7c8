"""Which messages are the same work: of those that are queued, only the latest is kept."""

from __future__ import annotations

from datetime import datetime

from chordage.orchestrator.core import spaces
from chordage.orchestrator.core.agent import WhenBusy
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.message import SELF_MADE, Origin, TurnRequest
from chordage.orchestrator.core.message_threads import SELF_MADE_THREADS, check_will


def check_work(request: TurnRequest, agent: str) -> None:
    """What bears the name of an agent's own work is for that work alone: nobody else's message takes its place."""
    check_will(request.message, agent)
    message = request.message
    key = request.coalesce_key and spaces.name_in(request.space, request.coalesce_key)
    if message.origin is Origin.WILL:
        _check_will(request)
    if key is None:
        return
    own = message.thread_id if message.origin in SELF_MADE else None
    if key == own or not key.startswith(SELF_MADE_THREADS):
        return
    told = f"coalesce_key {key!r} names work of the agent's own: choose one that begins otherwise"
    raise InvalidMessage(told, field="coalesce_key")


def _check_will(request: TurnRequest) -> None:
    """There is one of each agent, and a further one changes nothing."""
    if request.coalesce_key is not None:
        raise InvalidMessage("a will takes no coalesce_key: there is one of each agent", field="coalesce_key")
    if request.when_busy not in {None, WhenBusy.ENQUEUE}:
        told = f"a will takes no when_busy {request.when_busy.value!r}: while one is at work, it is merged into that"
        raise InvalidMessage(told, field="when_busy")


def key_of(request: TurnRequest, thread_id: str) -> str | None:
    """By its own word, else for standing work its thread. None: it is merged with nothing."""
    if request.message.origin is Origin.WILL:
        return thread_id
    return request.coalesce_key or (thread_id if request.message.origin in SELF_MADE else None)


def due_at(own: datetime, now: datetime, replaced: datetime | None) -> datetime:
    """Work that is triggered again and again keeps its place in time; it starts no earlier than it asks for itself."""
    return own if replaced is None or own > now else min(own, replaced)
