"""A delivery made here, to try a web hook with: signed with the secret that the binding names."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from urllib.parse import quote

import httpx

from chordage.config import settings as config
from chordage.config.settings import Settings
from chordage.orchestrator.core import signatures, webhooks
from chordage.orchestrator.core.errors import NotFound, Unavailable
from chordage.orchestrator.core.webhooks import WEBHOOK, Binding
from chordage.orchestrator.gateways.hooks import file
from chordage.workers.fleet.roles import local


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    status: int
    told: str
    turn_id: str | None
    delivery: str


def binding_of(settings: Settings, name: str) -> Binding:
    found = file.read(settings.room_path, config.environment())
    for broken in found.broken:
        if broken.name == name:
            raise broken.fault
    if found.fault is not None:
        raise found.fault
    named = next((one for one in found.bindings if one.name == name), None)
    if named is None:
        known = ", ".join(one.name for one in found.bindings) or "none"
        raise NotFound(f"there is no hook {name!r} in {settings.room_path / file.FILE}; there are: {known}")
    return named


def body_of(binding: Binding, text: str, thread: str | None) -> bytes:
    """The text wherever the binding looks for one."""
    shape = binding.shape
    paths = webhooks.fields_of(shape.text) if shape.text is not None else [shape.text_field]
    values = [(path, text) for path in paths] if binding.plugin == WEBHOOK else [("text", text)]
    if shape.thread_field is not None:
        values.append((shape.thread_field, thread or "test"))
    return json.dumps(webhooks.laid_out(values)).encode()


def send(settings: Settings, binding: Binding, body: bytes, *, delivery: str | None, url: str | None) -> Sent:
    delivery = delivery or f"test-{uuid.uuid4()}"
    headers = {"content-type": "application/json", **signatures.sealed(binding.seal, delivery, int(time.time()), body)}
    base = (url or f"http://{local(settings.host)}:{settings.port}").rstrip("/")
    try:
        response = httpx.request(
            binding.method, base + quote(binding.path), content=body, headers=headers, timeout=30, trust_env=False
        )
    except httpx.HTTPError as error:
        told = f"the HTTP server at {base} does not answer ({error}): start it with `chordage dev` or `chordage web`"
        raise Unavailable(told) from error
    return _sent(response, delivery)


def _sent(response: httpx.Response, delivery: str) -> Sent:
    try:
        answer = response.json() if response.content else {}
    except ValueError:
        answer = {}  # whoever answers there is not our server
    turn_id = answer.get("turn_id")
    usual = f"turn {turn_id}" if turn_id else response.reason_phrase
    return Sent(status=response.status_code, told=answer.get("detail", usual), turn_id=turn_id, delivery=delivery)
