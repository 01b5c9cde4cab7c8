"""Which thread a message may come on: each kind of standing work has one of its own, named after it."""

from __future__ import annotations

from typing import Protocol

from chordage.orchestrator.core import spaces
from chordage.orchestrator.core.errors import InvalidMessage

OF_TASK, OF_CHORE, OF_WILL = "task:", "chore:", "will:"
# What a thread of such work is called; the rest of the name says which.
NAMED_AFTER = {"task": (OF_TASK, "<id>"), "chore": (OF_CHORE, "<key>"), "will": (OF_WILL, "<agent>")}
SELF_MADE_THREADS = (OF_TASK, OF_CHORE, OF_WILL)


class Named(Protocol):
    """What of a message names its thread."""

    @property
    def origin(self) -> str: ...
    @property
    def thread_id(self) -> str | None: ...


def check_thread(message: Named) -> None:
    """What can be told without the agent: a will's thread bears its name, and is checked where that is known."""
    if (named := NAMED_AFTER.get(message.origin)) is None:
        return
    prefix, what = named
    thread_id = message.thread_id
    if thread_id is None and message.origin != "will":
        told = f"origin {str(message.origin)!r} needs the thread_id of its work: '{prefix}{what}'"
        raise InvalidMessage(told, field="thread_id")
    if thread_id is not None and not thread_id.removeprefix(prefix).strip():
        raise InvalidMessage(f"thread_id {thread_id!r} names nothing: give '{prefix}{what}'", field="thread_id")
    if thread_id is not None and not thread_id.startswith(prefix):
        told = f"origin {str(message.origin)!r} takes the thread_id '{prefix}{what}', not {thread_id!r}"
        raise InvalidMessage(told, field="thread_id")


def check_will(message: Named, agent: str) -> None:
    """A will has the thread of its agent and no other: there is one of each."""
    if message.origin != "will" or message.thread_id in {None, f"{OF_WILL}{agent}"}:
        return
    told = f"a will of agent {agent!r} goes on thread '{OF_WILL}{agent}', not {message.thread_id!r}: leave it out"
    raise InvalidMessage(told, field="thread_id")


def thread_of(message: Named, agent: str, turn_id: str, space: str | None = None) -> str:
    """Where a message goes that names no thread: a will to its agent's, any other to a new one, in its sender's space
    where that has one.
    """
    if message.thread_id is not None:
        return message.thread_id
    return f"{OF_WILL}{agent}" if message.origin == "will" else spaces.placed(space or message.origin, turn_id)
