"""Replies as webhooks: one signed POST each, after the Standard Webhooks specification.

The sender of a message chooses the address of its reply target, so private networks are refused unless a setting
allows them. The operator chooses the address of a channel of kind `webhook`, which may be anywhere. Redirects are not
followed.

Each receiver of a target has a secret of its own, derived from the operator's secret and the host: it cannot forge
replies for another receiver. While a secret is replaced there are several, and each signs.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from chordage.orchestrator.core import signatures
from chordage.orchestrator.core.channels import Outgoing, Polled
from chordage.orchestrator.core.deliveries import receiver_of_url, secret_for, shown
from chordage.orchestrator.core.errors import RoomError, TryLater, Undeliverable
from chordage.orchestrator.core.retry import retry_after
from chordage.orchestrator.gateways.address_guard import AddressGuard, AddressRefused, NotPublic
from chordage.orchestrator.gateways.room.tables import Complain, PairsTable, Text, TomlTable, Url

GONE = 410
SECRET_PREFIX = "whsec_"  # noqa: S105 - what the specification puts in front of a secret
ANYWHERE = AddressGuard(allow=("0.0.0.0/0", "::/0"))
_READ = 500  # bytes of an answer, for the words of an error


class WebhookTable(TomlTable):
    url: Url = Field(examples=["https://example.org/replies"], description="Where replies are posted")
    secret: Text | None = Field(None, repr=False, description="Signs each reply; better as secret_env")
    headers: PairsTable = Field({}, repr=False, description="HTTP headers")


TABLE = WebhookTable


def make(_name: str, table: WebhookTable, complain: Complain) -> Webhook:
    """A binding of channels.toml. Its address is the operator's, and may be anywhere."""
    secrets: tuple[bytes, ...] = ()
    try:
        secrets = secrets_of(table.secret or "", "it")
    except RoomError as error:
        complain("secret", str(error))
    return Webhook(url=table.url, secrets=secrets, headers=table.headers, guard=ANYWHERE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    """With `url`, a channel: its `secrets` sign as they are. Without it, each address has a url, and the secrets that
    sign are derived from `secrets` for its receiver.
    """

    url: str | None = None
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    guard: AddressGuard = field(default_factory=AddressGuard)
    timeout: float = 10.0

    def poll(self, cursor: str | None) -> Polled:
        """No messages: hooks.toml is for those."""
        return Polled(messages=(), cursor=cursor)

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        url = self.url or str(address.get("url", ""))
        rest, name = {key: value for key, value in address.items() if key != "url"}, shown({"url": url})
        body = json.dumps(body_of(reply, rest), ensure_ascii=False, separators=(",", ":")).encode()
        try:
            status, answer, wait = self._post(url, reply.key, body)
        except NotPublic as error:
            raise Undeliverable(f"{name}: {error}; CHORDAGE_WEBHOOK_ALLOW may allow its network") from error
        except AddressRefused as error:
            raise Undeliverable(f"{name}: {error}") from error
        except OSError as error:
            raise TryLater(f"{name} does not answer: {error or type(error).__name__}") from error
        if not 200 <= status < 300:
            why = f"{name} answered {status}{': ' + answer if answer else ''}"
            if status == GONE:
                raise Undeliverable(why)
            raise TryLater(why, wait)

    def close(self) -> None: ...

    def _post(self, url: str, key: str, body: bytes) -> tuple[int, str, float | None]:
        from chordage.orchestrator.gateways.http_client import guarded  # httpx is heavy, and most workers send nothing

        headers = self._headers(url, key, body)
        with guarded("POST", url, self.guard, headers=headers, content=body, timeout=self.timeout) as exchange:
            text = exchange.read_raw(_READ)[0].decode("utf-8", "replace").replace("\x00", "")
            return exchange.status, " ".join(text.split())[:200], retry_after(exchange.headers, datetime.now(UTC))

    def secrets_for(self, url: str) -> list[bytes]:
        """The first is the one to give to a receiver; the others are still valid."""
        receiver = receiver_of_url(url)
        return [secret if self.url is not None else secret_for(secret, receiver) for secret in self.secrets]

    def _headers(self, url: str, key: str, body: bytes) -> dict[str, str]:
        now = int(time.time())
        made = [signatures.standard(secret, key, now, body) for secret in self.secrets_for(url)]
        signature = {"webhook-signature": " ".join(made)} if made else {}
        return {
            "User-Agent": "chordage", "Content-Type": "application/json", **self.headers,
            "Idempotency-Key": key, "webhook-id": key, "webhook-timestamp": str(now), **signature,
        }  # fmt: skip


def body_of(reply: Outgoing, address: Mapping[str, Any]) -> dict[str, Any]:
    turn = {"type": "turn.ended", "turn_id": reply.turn_id, "thread_id": reply.thread_id, **reply.body}
    return {**turn, "text": reply.text, **({"address": dict(address)} if address else {})}


def secrets_of(text: str, name: str) -> tuple[bytes, ...]:
    """Separated by commas, while one replaces another."""
    return tuple(secret_of(part.strip(), name) for part in text.split(",") if part.strip())


def secret_of(text: str, name: str) -> bytes:
    """The text itself, or what follows `whsec_`, which is base64."""
    if not text.startswith(SECRET_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise RoomError(f"{name} begins with {SECRET_PREFIX}, and the rest is no base64") from error
