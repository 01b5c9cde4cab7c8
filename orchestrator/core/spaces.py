"""Spaces of threads: what stands before the first colon of a thread's id says whose it is.

A caller, over HTTP or by the name of a Celery task, has a space of its own. What it calls a thread is a name inside
that space, so it reaches no thread of a channel, a hook or the agent, whether that is there already or comes later.
Nobody has to list the names that are taken: an id outside the space cannot be written down.
"""

from __future__ import annotations

CALLERS = "api"  # of all callers, until each has a key; the space of a key is to be called `api@` and its tenant
# No channel may be called like one of these: the name of a channel is the space of its threads.
TAKEN = frozenset({CALLERS, "hook", "task", "chore", "will", "child", "invoke", "chat"})
_END = ":"


def prefix(space: str) -> str:
    return f"{space}{_END}"


def placed(space: str, name: str) -> str:
    """The id of what is called so in this space. An id of the space stands for itself."""
    return name if name.startswith(prefix(space)) else f"{prefix(space)}{name}"


def name_in(space: str | None, id_: str) -> str:
    """What it is called inside the space."""
    return id_ if space is None else id_.removeprefix(prefix(space))


def holds(space: str | None, thread_id: str) -> bool:
    """`space` None: of whoever operates, and may reach every thread."""
    return space is None or thread_id.startswith(prefix(space))
