"""A message and a turn request, and the rules each origin lays on them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from chordage.orchestrator.core import limits as limits_
from chordage.orchestrator.core.agent import WhenBusy, WhileWaiting
from chordage.orchestrator.core.approvals import DecisionRequest
from chordage.orchestrator.core.deliveries import check_target
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.limits import AS_THE_AGENT_SAYS, TurnLimits
from chordage.orchestrator.core.stepping import Control, StepTerms


class Origin(StrEnum):
    INVOKE = "invoke"
    CHAT = "chat"
    TASK = "task"
    CHORE = "chore"
    WILL = "will"


class Sender(StrEnum):
    OWNER = "owner"
    PEER = "peer"
    GUEST = "guest"
    SELF = "self"
    SERVICE = "service"


SELF_MADE = frozenset({Origin.TASK, Origin.CHORE, Origin.WILL})
NAME_MAX = 200
HOLD_MAX = 366 * 86_400.0  # seconds
NAMES = ("thread_id", "channel", "tenant", "dedupe_key", "coalesce_key")
NAMED_IN_SPACE = frozenset({"thread_id", "coalesce_key"})
# As JSON writes it; a backslash before it that is itself escaped makes it six harmless characters.
_NUL_IN_JSON = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

GROUP_OF = {
    Origin.INVOKE: Group.CHAT,
    Origin.CHAT: Group.CHAT,
    Origin.TASK: Group.TASK,
    Origin.CHORE: Group.CHORE,
    Origin.WILL: Group.WILL,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How large a message may be. Over it is an error, never a truncation."""

    text_bytes: int = 256 * 1024
    meta_bytes: int = 64 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    origin: Origin
    channel: str | None
    sender: Sender
    thread_id: str | None
    text: str
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Once:
    """What was signed, in short: within so many seconds it is taken once, under whatever id it comes."""

    digest: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRequest:
    message: Message
    agent: str | None = None
    strategy: str | None = None
    control: Control = Control.AUTO
    step: StepTerms | None = None  # of control step
    group: Group | None = None
    tenant: str | None = None
    source: str = "api"
    space: str | None = None  # of a caller: where its threads lie. None: it operates, and may name every thread
    dedupe_key: str | None = None
    once: Once | None = None  # beside the dedupe key, where that may be forged
    coalesce_key: str | None = None  # of the queued turns that have it, the latest is kept
    reply_target: dict[str, Any] | None = None
    not_before: datetime | None = None
    deadline: datetime | None = None
    when_busy: WhenBusy | None = None  # None: as the agent says
    while_waiting: WhileWaiting | None = None  # None: as the agent says
    limits: TurnLimits = AS_THE_AGENT_SAYS  # within those of the agent
    decisions: tuple[DecisionRequest, ...] = ()  # applied before the message is looked at

    def __post_init__(self) -> None:
        """What a caller names lies in its space from here on: nobody ever holds a request for a thread outside it."""
        if self.space is None:
            return
        thread_id, key = self.message.thread_id, self.coalesce_key
        if thread_id is not None:
            message = replace(self.message, thread_id=placed(self.space, thread_id))
            object.__setattr__(self, "message", message)
        if key is not None:
            object.__setattr__(self, "coalesce_key", placed(self.space, key))


def check(request: TurnRequest, bounds: Bounds, now: datetime) -> None:
    """Every rule of a turn request; the first that is broken is raised, with the field it is about."""
    message = request.message
    _check_caller(request)
    _check_origin(message)
    for name in NAMES:
        _check_name(name, _given(request, name))
    check_thread(message)
    _check_text(message, bounds)
    limits_.check(request.limits)
    _check_group(request)
    _check_step(request)
    if request.deadline is not None and request.deadline <= now:
        raise InvalidMessage("deadline lies in the past: give a later one or leave it out", field="deadline")
    if request.deadline and request.not_before and request.not_before >= request.deadline:
        raise InvalidMessage("not_before is not before deadline: the turn could never start", field="not_before")
    if request.reply_target is not None:
        _check_json("reply_target", request.reply_target, bounds.meta_bytes)
        check_target(request.reply_target)


def _given(request: TurnRequest, name: str) -> str | None:
    """As whoever sent it has written it."""
    value: str | None = getattr(request.message if hasattr(request.message, name) else request, name)
    return name_in(request.space, value) if value is not None and name in NAMED_IN_SPACE else value


def _check_caller(request: TurnRequest) -> None:
    origin = request.message.origin
    if request.space is not None and origin in SELF_MADE:
        told = f"origin {origin.value!r} is the agent's own and comes from its room: give 'invoke' or 'chat'"
        raise InvalidMessage(told, field="origin")


def _check_step(request: TurnRequest) -> None:
    terms = request.step
    if terms is None:
        return
    if request.control is not Control.STEP:
        raise InvalidMessage(
            "step lays down how a turn is driven by its consumer: give control 'step' with it", field="step"
        )
    if terms.max_iterations is not None and not 1 <= terms.max_iterations < 2**31:
        told = f"max_iterations is {terms.max_iterations}: give at least 1, or null for no limit"
        raise InvalidMessage(told, field="step.max_iterations")
    if terms.hold_seconds is not None and not 0 < terms.hold_seconds <= HOLD_MAX:
        told = f"hold_seconds is {terms.hold_seconds:g}: give more than 0 and at most {HOLD_MAX:g}, or null"
        raise InvalidMessage(told, field="step.hold_seconds")


def _check_origin(message: Message) -> None:
    if message.origin is Origin.CHAT:
        if not (message.channel or "").strip():
            raise InvalidMessage("origin 'chat' needs a channel, such as 'api' or 'telegram'", field="channel")
    elif message.channel is not None:
        raise InvalidMessage(f"origin {message.origin.value!r} takes no channel: leave it out", field="channel")
    if message.origin in SELF_MADE and message.sender is not Sender.SELF:
        raise InvalidMessage(
            f"origin {message.origin.value!r} needs sender 'self', not {message.sender.value!r}", field="sender"
        )


def _check_text(message: Message, bounds: Bounds) -> None:
    if not message.text.strip() and not _has_parts(message.meta):
        raise InvalidMessage("text is blank: say something, or give content parts in meta.parts", field="text")
    _check_characters("text", message.text)
    _check_size("text", message.text, bounds.text_bytes)
    _check_json("meta", message.meta, bounds.meta_bytes)


def _has_parts(meta: dict[str, Any]) -> bool:
    return isinstance(meta.get("parts"), list) and bool(meta["parts"])


def _check_json(field: str, value: dict[str, Any], limit: int) -> None:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"{field} is no JSON: {error}", field=field) from error
    _check_characters(field, text)
    if _NUL_IN_JSON.search(text):
        raise InvalidMessage(f"{field} holds a NUL character: remove it", field=field)
    _check_size(field, text, limit)


def _check_characters(field: str, text: str) -> None:
    """PostgreSQL stores no NUL, and no half of a surrogate pair is UTF-8: refuse both before they are half stored."""
    if "\x00" in text:
        raise InvalidMessage(f"{field} holds a NUL character: remove it", field=field)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"{field} holds half of a surrogate pair, which is no Unicode text, at character {error.start}", field=field
        ) from error


def _check_size(field: str, text: str, limit: int) -> None:
    if (size := len(text.encode())) > limit:
        raise InvalidMessage(f"{field} has {size} bytes, the limit is {limit}", field=field, too_large=True)


def _check_name(field: str, name: str | None) -> None:
    """What becomes a key or a column of its own: visible, and short enough to be one."""
    if name is None:
        return
    if not 1 <= len(name) <= NAME_MAX:
        raise InvalidMessage(f"{field} must have 1 to {NAME_MAX} characters, not {len(name)}", field=field)
    if not name.isprintable() or name.isspace():
        raise InvalidMessage(f"{field} must be visible characters: no control characters, not blank", field=field)


def _check_group(request: TurnRequest) -> None:
    own = GROUP_OF[request.message.origin]
    if request.group is not None and request.group.rank < own.rank:
        raise InvalidMessage(
            f"group {request.group.value!r} ranks above {own.value!r}, the group of origin "
            f"{request.message.origin.value!r}: a turn may only be moved downwards",
            field="group",
        )


def group_of(request: TurnRequest) -> Group:
    return request.group or GROUP_OF[request.message.origin]


# Which thread a message may come on: each kind of standing work has one of its own, named after it.

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
    return f"{OF_WILL}{agent}" if message.origin == "will" else placed(space or message.origin, turn_id)


# Spaces of threads: what stands before the first colon of a thread's id says whose it is.
#
# A caller, over HTTP or by the name of a Celery task, has a space of its own. What it calls a thread is a name inside
# that space, so it reaches no thread of a channel, a hook or the agent, whether that is there already or comes later.
# Nobody has to list the names that are taken: an id outside the space cannot be written down.

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
