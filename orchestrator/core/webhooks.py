"""The body of a delivery as JSON, and which of its fields become text, thread and meta. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import signatures
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.message import NAME_MAX, Message, Once, Origin, Sender, TurnRequest
from chordage.orchestrator.core.signatures import Form, Headers, Seal
from chordage.orchestrator.core.text import loads_json

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_NOTHING = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Where in the payload what stands. A path is dotted: `pull_request.title`, `commits.0.id`."""

    text_field: str = "text"
    text: str | None = None  # a template instead: "{sender.login} pushed to {ref}"
    thread_field: str | None = None
    meta_fields: tuple[str, ...] = ()
    meta_headers: tuple[str, ...] = ()


def read(body: bytes) -> dict[str, Any]:
    """Raises InvalidMessage."""
    try:
        payload = loads_json(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise InvalidMessage(f"the body is not JSON in UTF-8: {error}", field="body") from error
    if not isinstance(payload, dict):
        raise InvalidMessage("the body must be a JSON object", field="body")
    return payload


def text_of(shape: Shape, payload: Mapping[str, Any]) -> str:
    if shape.text is not None:
        return _FIELD.sub(lambda found: _filled(found, payload), shape.text)
    text = at(payload, shape.text_field)
    if not isinstance(text, str) or not text.strip():
        raise InvalidMessage(f"{shape.text_field} must be a text that is not blank", field=shape.text_field)
    return text


def thread_of(shape: Shape, payload: Mapping[str, Any]) -> str | None:
    if shape.thread_field is None:
        return None
    thread = at(payload, shape.thread_field)
    if isinstance(thread, int) and not isinstance(thread, bool):
        return str(thread)
    if not isinstance(thread, str) or not thread.strip():
        raise InvalidMessage(f"{shape.thread_field} must be a text or a whole number", field=shape.thread_field)
    return thread


def meta_of(shape: Shape, payload: Mapping[str, Any], headers: Headers) -> dict[str, Any]:
    """What is not there is left out."""
    fields = {path: found for path in shape.meta_fields if (found := _find(payload, path)) is not _NOTHING}
    return fields | {name: headers[name] for name in shape.meta_headers if name in headers}


def at(payload: Mapping[str, Any], path: str) -> Any:
    found = _find(payload, path)
    if found is _NOTHING:
        raise InvalidMessage(f"{path} is missing", field=path)
    return found


def fields_of(template: str) -> list[str]:
    """The paths that a template asks for. Raises ValueError for a brace that stands alone."""
    if re.search(r"[{}]", _FIELD.sub("", template)):
        raise ValueError("a brace stands alone; a field is written {like.this}, and a brace itself {{ or }}")
    return [found[1] for found in _FIELD.finditer(template) if found[1]]


def laid_out(paths: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A payload that has these values at these paths."""
    payload: dict[str, Any] = {}
    for path, value in paths:
        *outer, last = path.split(".")
        inner = payload
        for name in outer:
            if not isinstance(inner.get(name), dict):
                inner[name] = {}
            inner = inner[name]
        inner[last] = value
    return payload


def _filled(found: re.Match[str], payload: Mapping[str, Any]) -> str:
    if found[1] is None:
        return found[0][0]  # a brace written twice
    value = at(payload, found[1])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _find(payload: Any, path: str) -> Any:
    """Keys of objects and places in lists, and nothing else of a value."""
    for name in path.split("."):
        if isinstance(payload, dict) and name in payload:
            payload = payload[name]
        elif isinstance(payload, list) and re.fullmatch("[0-9]{1,6}", name) and int(name) < len(payload):
            payload = payload[int(name)]
        else:
            return _NOTHING
    return payload


# A binding of hooks.toml: which delivery it takes, and what it makes of one. Who speaks is said here, never there.

PREFIX = "/hooks/"  # of every path: no binding can stand where the API has its own
WEBHOOK = "webhook"  # the decoder that is always there
MAX_BYTES = 1024 * 1024


class DeliveryOutcome(StrEnum):
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
class WebhookBinding:
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
class DecodedMessage:
    """What a decoder reads from a delivery. Sender, agent and rights come from the binding."""

    text: str
    thread: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


def delivery_key(seal: Seal, headers: Headers, body: bytes) -> str | None:
    """The same for a delivery that is sent again; None where nothing identifies it. Raises InvalidMessage."""
    name = signatures.STANDARD_ID if seal.form is Form.STANDARD else seal.id_header
    if name is None:
        return signatures.proof(seal, headers, body) if seal.form is Form.HMAC else None
    key = headers.get(name, "")
    if not 1 <= len(key) <= NAME_MAX or not key.isprintable() or key.isspace():
        raise InvalidMessage(f"header {name} must hold the id of the delivery, 1 to {NAME_MAX} characters", field=name)
    return key


def once_of(seal: Seal, headers: Headers, body: bytes) -> Once | None:
    """Identifies a copy of a delivery that comes under another id."""
    if not signatures.leaves_id_unsigned(seal):
        return None
    return Once(digest=signatures.proof(seal, headers, body), seconds=signatures.believed_for(seal))


def request_of(
    binding: WebhookBinding, decoded: DecodedMessage, key: str | None, once: Once | None = None
) -> TurnRequest:
    """A thread that a delivery names is in a space of the binding, so that it cannot name other conversations."""
    thread = f"{binding.source}:{decoded.thread}" if decoded.thread is not None else binding.thread
    message = Message(
        origin=binding.origin,
        channel=binding.name if binding.origin is Origin.CHAT else None,
        sender=binding.sender,
        thread_id=thread,
        text=decoded.text,
        meta=dict(decoded.meta),
    )
    target = None if binding.reply_target is None else dict(binding.reply_target)
    return TurnRequest(
        message=message, agent=binding.agent, source=binding.source, dedupe_key=key, once=once, reply_target=target
    )  # fmt: skip
