"""A message, the request for a turn that carries it, and the rules for both.

Every thread id has the form `SPACE:NAME`, and the space says whose thread it is. A caller, over HTTP or through a
Celery task, has a space of its own, and the ids that it gives are names inside that space. So it cannot reach a thread
of a channel, a webhook or the agent, whether that exists already or not, and no list of taken names is needed: an id
outside the space cannot be written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import client_tools
from chordage.orchestrator.core import limits as limits_
from chordage.orchestrator.core.agent import WhenBusy, WhileWaiting
from chordage.orchestrator.core.approvals import DecisionRequest
from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.client_tools import ClientTool
from chordage.orchestrator.core.deliveries import check_target
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.forking import ForkTerms
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.limits import AS_THE_AGENT_SAYS, TurnLimits
from chordage.orchestrator.core.spans import valid_traceparent
from chordage.orchestrator.core.stepping import Control, StepTerms
from chordage.orchestrator.core.text import NAME_MAX


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


SELF_MADE = frozenset({Origin.TASK, Origin.CHORE, Origin.WILL})  # work that the agent's own room schedules
GROUP_OF = {
    Origin.INVOKE: Group.CHAT,
    Origin.CHAT: Group.CHAT,
    Origin.TASK: Group.TASK,
    Origin.CHORE: Group.CHORE,
    Origin.WILL: Group.WILL,
}

OF_TASK, OF_CHORE, OF_WILL = SELF_MADE_THREADS = ("task:", "chore:", "will:")
_THREAD_OF = {Origin.TASK: (OF_TASK, "<id>"), Origin.CHORE: (OF_CHORE, "<key>"), Origin.WILL: (OF_WILL, "<agent>")}
CALLERS = "api"  # the space of callers; of those with a tenant it is `api@` and the tenant, of a user `~` and the name
# The name of a channel is the space of its threads, so no channel may have one of these names.
TAKEN = frozenset({CALLERS, "hook", "task", "chore", "will", "child", "invoke", "chat", "drill"})

_HOLD_MAX = 366 * 86_400.0  # seconds
# As JSON writes it; a backslash before it that is itself escaped makes it six harmless characters.
_NUL_IN_JSON = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def prefix(space: str) -> str:
    return f"{space}:"


def placed(space: str, name: str) -> str:
    """The id of this name in the space. An id of the space is returned as it is."""
    return name if name.startswith(prefix(space)) else f"{prefix(space)}{name}"


def name_in(space: str | None, id_: str) -> str:
    """The reverse of `placed`."""
    return id_ if space is None else id_.removeprefix(prefix(space))


def space_of(tenant: str | None, user: str | None = None) -> str:
    """Of callers of this tenant, or of the user for whom such a caller speaks."""
    of_tenant = CALLERS if tenant is None else f"{CALLERS}@{tenant}"
    return of_tenant if user is None else f"{of_tenant}~{user}"


def tenant_of(space: str | None) -> str | None:
    """Of the callers whose space this is. None: the space is not one of a tenant."""
    if space is None or not space.startswith(f"{CALLERS}@"):
        return None
    return space.removeprefix(f"{CALLERS}@").partition("~")[0]


def source_in(space: str | None, source: str) -> str:
    """The source of the turns of callers in this space. A dedupe key is unique within an agent and a source: with a
    source of its own, a tenant, or a user, finds no turn of another.
    """
    owner = space.removeprefix(CALLERS) if space is not None and space.startswith(CALLERS) else ""
    return source if source.endswith(owner) else f"{source}{owner}"


def holds(space: str | None, thread_id: str) -> bool:
    """Whether the thread is in the space. Space None is an operator's, who may reach every thread."""
    return space is None or thread_id.startswith(prefix(space))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How large a message may be. A larger one is refused, never truncated."""

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
    """The digest of signed bytes: for so many seconds they are accepted once, under whatever id they come."""

    digest: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRequest:
    """A message and how its turn is to run. Names that a caller gives are put into its space when it is built, and it
    counts for the tenant of that space.
    """

    message: Message
    agent: str | None = None  # None: the room's default
    strategy: str | None = None  # None: as the agent says
    control: Control = Control.AUTO
    step: StepTerms | None = None  # with control step
    group: Group | None = None  # None: that of the origin
    tenant: str | None = None
    source: str = "api"
    space: str | None = None  # of a caller; None: an operator's
    dedupe_key: str | None = None
    once: Once | None = None  # in addition to the dedupe key, where that may be forged
    coalesce_key: str | None = None  # of the queued turns with the same key, the latest is kept
    reply_target: dict[str, Any] | None = None
    not_before: datetime | None = None
    deadline: datetime | None = None
    when_busy: WhenBusy | None = None  # None: as the agent says
    while_waiting: WhileWaiting | None = None  # None: as the agent says
    limits: TurnLimits = AS_THE_AGENT_SAYS  # within those of the agent
    decisions: tuple[DecisionRequest, ...] = ()  # applied before the message is admitted
    client_tools: tuple[ClientTool, ...] = ()  # that the caller carries out itself, in this turn
    fork: ForkTerms | None = None  # its run repeats a part of another
    by: Actor | None = None  # who sends it, where that is known: recorded with its decisions
    audited: Audited | None = None  # the action of `by` that this message is, where it is more than a message
    traceparent: str | None = None  # the span of its caller, as W3C writes it; a malformed one counts as none

    def __post_init__(self) -> None:
        object.__setattr__(self, "traceparent", valid_traceparent(self.traceparent))
        if self.space is None:
            return
        if self.message.thread_id is not None:
            message = replace(self.message, thread_id=placed(self.space, self.message.thread_id))
            object.__setattr__(self, "message", message)
        if self.coalesce_key is not None:
            object.__setattr__(self, "coalesce_key", placed(self.space, self.coalesce_key))
        object.__setattr__(self, "source", source_in(self.space, self.source))
        if (tenant := tenant_of(self.space)) is not None:
            object.__setattr__(self, "tenant", tenant)


def group_of(request: TurnRequest) -> Group:
    return request.group or GROUP_OF[request.message.origin]


def thread_of(message: Message, agent: str, turn_id: str, space: str | None = None) -> str:
    """The thread of a message. Without one, a will goes to its agent's and any other to a new one, in the sender's
    space if it has one.
    """
    if message.thread_id is not None:
        return message.thread_id
    return f"{OF_WILL}{agent}" if message.origin is Origin.WILL else placed(space or message.origin, turn_id)


def check(request: TurnRequest, bounds: Bounds, now: datetime) -> None:
    """Raises InvalidMessage with the field of the first rule that is broken."""
    message = request.message
    _check_origin(message, request.space)
    # The names as the sender wrote them.
    thread_id, key = (value and name_in(request.space, value) for value in (message.thread_id, request.coalesce_key))
    _check_name("thread_id", thread_id)
    _check_name("channel", message.channel)
    _check_name("tenant", request.tenant)
    _check_name("dedupe_key", request.dedupe_key)
    _check_name("coalesce_key", key)
    _check_thread(message)
    _check_text(message, bounds)
    limits_.check(request.limits)
    _check_group(request)
    _check_step(request)
    if request.client_tools:
        client_tools.check(request.client_tools)
        _check_json(client_tools.FIELD, client_tools.stored(request.client_tools), bounds.meta_bytes)
    if request.deadline is not None and request.deadline <= now:
        raise InvalidMessage("deadline lies in the past: give a later one or leave it out", field="deadline")
    if request.deadline and request.not_before and request.not_before >= request.deadline:
        raise InvalidMessage("not_before is not before deadline: the turn could never start", field="not_before")
    if request.reply_target is not None:
        _check_json("reply_target", request.reply_target, bounds.meta_bytes)
        check_target(request.reply_target)


def _check_origin(message: Message, space: str | None) -> None:
    origin = message.origin
    if space is not None and origin in SELF_MADE:
        problem = f"origin {origin.value!r} is the agent's own and comes from its room: give 'invoke' or 'chat'"
        raise InvalidMessage(problem, field="origin")
    if origin is Origin.CHAT:
        if not (message.channel or "").strip():
            raise InvalidMessage("origin 'chat' needs a channel, such as 'api' or 'telegram'", field="channel")
    elif message.channel is not None:
        raise InvalidMessage(f"origin {origin.value!r} takes no channel: leave it out", field="channel")
    if origin in SELF_MADE and message.sender is not Sender.SELF:
        problem = f"origin {origin.value!r} needs sender 'self', not {message.sender.value!r}"
        raise InvalidMessage(problem, field="sender")


def _check_name(field: str, name: str | None) -> None:
    """A key, or the value of an indexed column, has to be short and visible."""
    if name is None:
        return
    if not 1 <= len(name) <= NAME_MAX:
        raise InvalidMessage(f"{field} must have 1 to {NAME_MAX} characters, not {len(name)}", field=field)
    if not name.isprintable() or name.isspace():
        raise InvalidMessage(f"{field} must be visible characters: no control characters, not blank", field=field)


def _check_thread(message: Message) -> None:
    """Scheduled work has threads of its own. That a will's is named after its agent is checked by `arrivals`."""
    if message.origin not in SELF_MADE:
        return
    thread_prefix, rest = _THREAD_OF[message.origin]
    thread_id, form, origin = message.thread_id, f"'{thread_prefix}{rest}'", message.origin.value
    if thread_id is None:
        if message.origin is not Origin.WILL:
            raise InvalidMessage(f"origin {origin!r} needs the thread_id of its work: {form}", field="thread_id")
    elif not thread_id.removeprefix(thread_prefix).strip():
        raise InvalidMessage(f"thread_id {thread_id!r} names nothing: give {form}", field="thread_id")
    elif not thread_id.startswith(thread_prefix):
        problem = f"origin {origin!r} takes the thread_id {form}, not {thread_id!r}"
        raise InvalidMessage(problem, field="thread_id")


def _check_text(message: Message, bounds: Bounds) -> None:
    parts = message.meta.get("parts")
    if not message.text.strip() and not (isinstance(parts, list) and parts):
        raise InvalidMessage("text is blank: say something, or give content parts in meta.parts", field="text")
    _check_characters("text", message.text)
    _check_size("text", message.text, bounds.text_bytes)
    _check_json("meta", message.meta, bounds.meta_bytes)


def _check_json(field: str, value: Any, limit: int) -> None:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"{field} is no JSON: {error}", field=field) from error
    _check_characters(field, text)
    if _NUL_IN_JSON.search(text):
        raise InvalidMessage(f"{field} holds a NUL character: remove it", field=field)
    _check_size(field, text, limit)


def _check_characters(field: str, text: str) -> None:
    """PostgreSQL stores no NUL, and half of a surrogate pair cannot be encoded as UTF-8."""
    if "\x00" in text:
        raise InvalidMessage(f"{field} holds a NUL character: remove it", field=field)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"{field} holds half of a surrogate pair, which is no Unicode text, at character {error.start}"
        raise InvalidMessage(problem, field=field) from error


def _check_size(field: str, text: str, limit: int) -> None:
    if (size := len(text.encode())) > limit:
        raise InvalidMessage(f"{field} has {size} bytes, the limit is {limit}", field=field, too_large=True)


def _check_group(request: TurnRequest) -> None:
    origin, group = request.message.origin, request.group
    if group is not None and group.rank < GROUP_OF[origin].rank:
        raise InvalidMessage(
            f"group {group.value!r} ranks above {GROUP_OF[origin].value!r}, the group of origin {origin.value!r}: "
            "a turn may only be moved downwards",
            field="group",
        )


def _check_step(request: TurnRequest) -> None:
    terms = request.step
    if terms is None:
        return
    if request.control is not Control.STEP:
        problem = "step lays down how a turn is driven by its consumer: give control 'step' with it"
        raise InvalidMessage(problem, field="step")
    if terms.max_iterations is not None and not 1 <= terms.max_iterations < 2**31:
        problem = f"max_iterations is {terms.max_iterations}: give at least 1, or null for no limit"
        raise InvalidMessage(problem, field="step.max_iterations")
    if terms.hold_seconds is not None and not 0 < terms.hold_seconds <= _HOLD_MAX:
        problem = f"hold_seconds is {terms.hold_seconds:g}: give more than 0 and at most {_HOLD_MAX:g}, or null"
        raise InvalidMessage(problem, field="step.hold_seconds")
