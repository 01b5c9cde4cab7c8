"""A binding of hooks.toml: which delivery it takes, and what it makes of one. Who speaks is said here, never there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import seals
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.hook_payload import Shape
from chordage.orchestrator.core.message import NAME_MAX, Message, Once, Origin, Sender, TurnRequest
from chordage.orchestrator.core.seals import Form, Headers, Seal

PREFIX = "/hooks/"  # of every path: no binding can stand where the API has its own
WEBHOOK = "webhook"  # the decoder that is always there
MAX_BYTES = 1024 * 1024


class Outcome(StrEnum):
    """What became of a delivery."""

    ACCEPTED = "accepted"
    IGNORED = "ignored"  # its decoder says that it is no message
    UNSIGNED = "unsigned"
    WRONG = "wrong_signature"
    STALE = "stale"
    REPLAYED = "replayed"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    CROWDED = "crowded"  # too many bodies were on their way
    BROKEN = "broken"  # the connection ended before its body did
    MALFORMED = "malformed"
    BUSY = "busy"  # its thread is, and the agent wants it refused then
    FULL = "full"
    FAILED = "failed"  # a decoder of one's own, or an agent that is broken
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    name: str
    path: str
    method: str
    seal: Seal
    origin: Origin = Origin.INVOKE
    sender: Sender = Sender.SERVICE
    agent: str | None = None
    max_bytes: int = MAX_BYTES
    thread: str | None = None  # of every delivery
    reply_target: Mapping[str, Any] | None = None
    plugin: str = WEBHOOK
    shape: Shape = field(default_factory=Shape)  # of `webhook`
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of a decoder of one's own

    @property
    def source(self) -> str:
        return f"hook:{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a decoder reads out of a delivery. Who speaks, to whom and with which right is none of it."""

    text: str
    thread: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


def delivery_key(seal: Seal, headers: Headers, body: bytes) -> str | None:
    """The same for a delivery that comes again; None where nothing tells. Raises InvalidMessage."""
    name = seals.STANDARD_ID if seal.form is Form.STANDARD else seal.id_header
    if name is None:
        return seals.proof(seal, headers, body) if seal.form is Form.HMAC else None
    key = headers.get(name, "")
    if not 1 <= len(key) <= NAME_MAX or not key.isprintable() or key.isspace():
        raise InvalidMessage(f"header {name} must hold the id of the delivery, 1 to {NAME_MAX} characters", field=name)
    return key


def once_of(seal: Seal, headers: Headers, body: bytes) -> Once | None:
    """By which a copy of a delivery is known again although its id is another one."""
    if not seals.leaves_id_unsigned(seal):
        return None
    return Once(digest=seals.proof(seal, headers, body), seconds=seals.believed_for(seal))


def request_of(binding: Binding, said: Said, key: str | None, once: Once | None = None) -> TurnRequest:
    """A thread that a delivery names lies in the binding's own space: it reaches no conversation of anybody else."""
    thread = f"{binding.source}:{said.thread}" if said.thread is not None else binding.thread
    message = Message(
        origin=binding.origin,
        channel=binding.name if binding.origin is Origin.CHAT else None,
        sender=binding.sender,
        thread_id=thread,
        text=said.text,
        meta=dict(said.meta),
    )
    target = None if binding.reply_target is None else dict(binding.reply_target)
    return TurnRequest(
        message=message, agent=binding.agent, source=binding.source, dedupe_key=key, once=once, reply_target=target
    )  # fmt: skip
