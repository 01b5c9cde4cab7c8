"""Webhooks of a room: what receives them in the HTTP server, and test deliveries signed as a sender would."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

import httpx
from redis.exceptions import RedisError

from chordage.config import settings as config
from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.orchestrator.core import signatures, webhooks
from chordage.orchestrator.core.errors import NotFound, Unavailable
from chordage.orchestrator.core.message import TurnRequest
from chordage.orchestrator.core.webhooks import WEBHOOK, WebhookBinding
from chordage.orchestrator.gateways.webhooks.bindings import FILE, WebhookBindings, read
from chordage.orchestrator.gateways.webhooks.stats import SharedCounts, WebhookStats
from chordage.orchestrator.loops.hook import Admission, WebhookReceiver
from chordage.orchestrator.views import HookView
from chordage.workers.bootstrap import quick_redis_from
from chordage.workers.fleet.roles import local

STATS_FOLDER = "hooks"  # in the room


def receiver_of(settings: Settings, accept: Callable[[TurnRequest], Admission]) -> WebhookReceiver:
    room = settings.room_path
    bindings = WebhookBindings(room, config.environment())
    return WebhookReceiver(
        bindings=bindings, accept=accept, stats=WebhookStats(counts_of(settings), room / STATS_FOLDER)
    )


def counts_of(settings: Settings) -> SharedCounts:
    return SharedCounts(quick_redis_from(settings), prefix=settings.prefix)


def hooks_of(settings: Settings) -> list[HookView]:
    """As hooks.toml is now. Without counts where Redis does not answer."""
    file = read(settings.room_path, config.environment())
    counts = counts_of(settings)
    try:
        return views.hooks(file, {binding.name: counts.of(binding.name) for binding in file.bindings})
    except RedisError:
        return views.hooks(file, {})


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryReceipt:
    status: int
    detail: str
    turn_id: str | None
    delivery: str


def binding_of(settings: Settings, name: str) -> WebhookBinding:
    content = read(settings.room_path, config.environment())
    for broken in content.broken:
        if broken.name == name:
            raise broken.fault
    if content.fault is not None:
        raise content.fault
    for binding in content.bindings:
        if binding.name == name:
            return binding
    known = ", ".join(binding.name for binding in content.bindings) or "none"
    raise NotFound(f"there is no hook {name!r} in {settings.room_path / FILE}; there are: {known}")


def body_of(binding: WebhookBinding, text: str, thread: str | None) -> bytes:
    """The text, at every place where the binding looks for one."""
    shape = binding.shape
    paths = webhooks.fields_of(shape.text) if shape.text is not None else [shape.text_field]
    values = [(path, text) for path in paths] if binding.plugin == WEBHOOK else [("text", text)]
    if shape.thread_field is not None:
        values.append((shape.thread_field, thread or "test"))
    return json.dumps(webhooks.laid_out(values)).encode()


def send(
    settings: Settings, binding: WebhookBinding, body: bytes, *, delivery: str | None, url: str | None
) -> DeliveryReceipt:
    delivery = delivery or f"test-{uuid.uuid4()}"
    headers = {"content-type": "application/json", **signatures.sealed(binding.seal, delivery, int(time.time()), body)}
    base = (url or f"http://{local(settings.host)}:{settings.port}").rstrip("/")
    try:
        response = httpx.request(
            binding.method, base + quote(binding.path), content=body, headers=headers, timeout=30, trust_env=False
        )
    except httpx.HTTPError as error:
        raise Unavailable(
            f"the HTTP server at {base} does not answer ({error}): start it with `chordage dev` or `chordage web`"
        ) from error
    try:
        answer = response.json() if response.content else {}
    except ValueError:
        answer = {}  # another server answers there
    turn_id = answer.get("turn_id")
    detail = answer.get("detail", f"turn {turn_id}" if turn_id else response.reason_phrase)
    return DeliveryReceipt(status=response.status_code, detail=detail, turn_id=turn_id, delivery=delivery)
