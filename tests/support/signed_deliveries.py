"""A room with webhooks, and deliveries that are signed as their senders would."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.views import TurnView
from support.web_server import PROBLEM

SECRET = "a secret of some length"
STANDARD_SECRET = "whsec_" + base64.b64encode(b"standard secret of 24 by").decode()
OLD_SECRET = "whsec_" + base64.b64encode(b"the secret of last month").decode()
ENV = {"HOOK_SECRET": SECRET, "HOOK_STANDARD": STANDARD_SECRET, "HOOK_OLD": OLD_SECRET}
NUMBERS = itertools.count(1)

FILE = """\
[hooks.standard]
path = "/hooks/standard"
signature = "standard"
secret_env = ["HOOK_STANDARD", "HOOK_OLD"]
max_bytes = 2000

[hooks.github]
path = "/hooks/github"
signature = "github"
secret_env = "HOOK_SECRET"
[hooks.github.config]
text = "{sender.login} pushed to {ref}"
thread_field = "repository.id"
meta_fields = ["ref", "nothing"]
meta_headers = ["X-GitHub-Event"]

[hooks.plain]
path = "/hooks/plain"
signature = "hmac"
secret_env = "HOOK_SECRET"
signature_header = "X-Mac"
signature_prefix = "v1="
signature_encoding = "base64"
timestamp_header = "X-Time"
idempotency_header = "X-Id"

[hooks.bare]
path = "/hooks/bare"
signature = "hmac"
secret_env = "HOOK_SECRET"

[hooks.open]
path = "/hooks/open"
method = "put"
signature = "none"
agent = "bob"
[hooks.open.config]
origin = "chat"
sender = "guest"
thread = "front-desk"
reply_target = {channel = "desk", address = "1"}
"""


def standard(body: bytes, secret: str = STANDARD_SECRET, at: float = 0, delivery: str = "", **more: str) -> dict:
    """Written out, and not by way of what is tested."""
    stamp, delivery = str(int(time.time() + at)), delivery or f"msg_{next(NUMBERS)}"
    key = base64.b64decode(secret.removeprefix("whsec_"))
    made = hmac.new(key, f"{delivery}.{stamp}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(made).decode()}"
    return {"webhook-id": delivery, "webhook-timestamp": stamp, "webhook-signature": signature, **more}


def github(body: bytes, secret: str = SECRET, delivery: str = "", **more: str) -> dict:
    made = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    delivery = delivery or f"guid-{next(NUMBERS)}"
    return {"X-Hub-Signature-256": f"sha256={made}", "X-GitHub-Delivery": delivery, **more}


def plain(body: bytes, secret: str = SECRET, at: float = 0, delivery: str = "", **more: str) -> dict:
    stamp = str(int(time.time() + at))
    made = hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256).digest()
    mac = f"v1={base64.b64encode(made).decode()}"
    return {"X-Mac": mac, "X-Time": stamp, "X-Id": delivery or f"id-{next(NUMBERS)}", **more}


def bare(body: bytes, secret: str = SECRET, **more: str) -> dict:
    return {"X-Signature": hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(), **more}


SIGNED = {"standard": standard, "github": github, "plain": plain, "bare": bare}


def body(**fields: object) -> bytes:
    return json.dumps({"text": "hello", **fields}).encode()


PUSH = {"ref": "refs/heads/main", "sender": {"login": "ada"}, "repository": {"id": 7}}


def bodies(name: str) -> bytes:
    """No two alike: a copy is refused, whatever its id."""
    return json.dumps({**PUSH, "n": next(NUMBERS)}).encode() if name == "github" else body(n=next(NUMBERS))


def write(room: Path, text: str = FILE) -> None:
    (room / "hooks.toml").write_text(text, encoding="utf-8")


def environment(monkeypatch, more: Mapping[str, str] = {}) -> None:
    for name, value in {**ENV, **more}.items():
        monkeypatch.setenv(name, value)


@dataclass(frozen=True, kw_only=True)
class WebhookClient:
    """A server with webhooks, and what it has stored."""

    client: httpx.Client
    rt: Runtime
    settings: Settings
    before: frozenset[str] = field(default_factory=frozenset)

    def from_now_on(self) -> WebhookClient:
        return replace(self, before=frozenset(turn.turn_id for turn in views.turns(self.rt.store, limit=1000)))

    def stored(self) -> list[TurnView]:
        return [turn for turn in views.turns(self.rt.store, limit=1000) if turn.turn_id not in self.before]

    def post(self, name: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        return self.client.post(f"/hooks/{name}", content=body, headers=headers)


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document."""
    problem: dict[str, Any] = response.json()
    assert (response.status_code, response.headers["Content-Type"]) == (status, PROBLEM)
    assert problem["status"] == status
    return problem
