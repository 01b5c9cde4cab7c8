"""Webhooks: a binding of hooks.toml, the reading of a delivery, and the turn request that it becomes.

The binding decides sender, agent and rights; a delivery only gives text, thread and meta.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core import signatures
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.message import Message, Once, Origin, Sender, TurnRequest
from chordage.orchestrator.core.signatures import Form, Headers, Seal
from chordage.orchestrator.core.text import NAME_MAX, loads_json

PREFIX = "/hooks/"  # of every path, so that no binding hides a path of the API
WEBHOOK = "webhook"  # the built-in decoder
MAX_BYTES = 1024 * 1024
_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_MISSING = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Paths of fields in the payload, with dots: `pull_request.title`, `commits.0.id`."""

    text_field: str = "text"
    text: str | None = None  # a template instead: "{sender.login} pushed to {ref}"
    thread_field: str | None = None
    meta_fields: tuple[str, ...] = ()
    meta_headers: tuple[str, ...] = ()


class DeliveryOutcome(StrEnum):
    """The outcome of a delivery."""

    ACCEPTED = "accepted"
    IGNORED = "ignored"  # it is not a message, by its decoder
    UNSIGNED = "unsigned"
    WRONG = "wrong_signature"
    STALE = "stale"
    REPLAYED = "replayed"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    CROWDED = "crowded"  # too many bodies were being received
    BROKEN = "broken"  # the connection ended inside the body
    MALFORMED = "malformed"
    BUSY = "busy"  # its thread is busy, and the agent rejects then
    FULL = "full"
    FAILED = "failed"  # a custom decoder, or an agent that is broken
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
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of a custom decoder

    @property
    def source(self) -> str:
        return f"hook:{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedMessage:
    """The result of a decoder."""

    text: str
    thread: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


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
        return _FIELD.sub(lambda field: _fill(field, payload), shape.text)
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
    """Missing fields are left out."""
    fields = {path: value for path in shape.meta_fields if (value := _find(payload, path)) is not _MISSING}
    return fields | {name: headers[name] for name in shape.meta_headers if name in headers}


def at(payload: Mapping[str, Any], path: str) -> Any:
    value = _find(payload, path)
    if value is _MISSING:
        raise InvalidMessage(f"{path} is missing", field=path)
    return value


def fields_of(template: str) -> list[str]:
    """The paths in a template. Raises ValueError for a single brace."""
    if re.search(r"[{}]", _FIELD.sub("", template)):
        raise ValueError("there is a single brace; a field is written {like.this}, and a brace itself {{ or }}")
    return [field[1] for field in _FIELD.finditer(template) if field[1]]


def laid_out(paths: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A payload with these values at these paths."""
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


def _fill(field: re.Match[str], payload: Mapping[str, Any]) -> str:
    if field[1] is None:
        return field[0][0]  # a doubled brace
    value = at(payload, field[1])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _find(payload: Any, path: str) -> Any:
    """Follow keys of objects and indexes of lists."""
    for name in path.split("."):
        if isinstance(payload, dict) and name in payload:
            payload = payload[name]
        elif isinstance(payload, list) and re.fullmatch("[0-9]{1,6}", name) and int(name) < len(payload):
            payload = payload[int(name)]
        else:
            return _MISSING
    return payload


def delivery_key(seal: Seal, headers: Headers, body: bytes) -> str | None:
    """The same for each copy of a delivery; None where nothing identifies it. Raises InvalidMessage."""
    name = signatures.STANDARD_ID if seal.form is Form.STANDARD else seal.id_header
    if name is None:
        return signatures.proof(seal, headers, body) if seal.form is Form.HMAC else None
    key = headers.get(name, "")
    if not 1 <= len(key) <= NAME_MAX or not key.isprintable() or key.isspace():
        raise InvalidMessage(f"header {name} must hold the id of the delivery, 1 to {NAME_MAX} characters", field=name)
    return key


def once_of(seal: Seal, headers: Headers, body: bytes) -> Once | None:
    """Recognises a copy of a delivery under another id."""
    if not signatures.leaves_id_unsigned(seal):
        return None
    return Once(digest=signatures.proof(seal, headers, body), seconds=signatures.believed_for(seal))


def request_of(
    binding: WebhookBinding, decoded: DecodedMessage, key: str | None, once: Once | None = None
) -> TurnRequest:
    """The thread of a delivery is in the space of its binding, so that it cannot reach other conversations."""
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
