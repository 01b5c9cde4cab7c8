"""Replies as web hooks: one signed POST each, after the Standard Webhooks specification.

A reply target names its address itself, so it is chosen by whoever sent the message: private networks are refused
unless a setting allows them. The address of a channel of kind `webhook` is the operator's, and may be anywhere.
Redirects are not followed.
"""

from __future__ import annotations

import base64
import binascii
import email.utils
import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from chordage.orchestrator.core import signatures
from chordage.orchestrator.core.channels import Outgoing, Polled
from chordage.orchestrator.core.delivering import shown
from chordage.orchestrator.core.errors import RoomError, TryLater, Undeliverable
from chordage.orchestrator.gateways.tools import checked_connections
from chordage.orchestrator.gateways.tools.addresses import Guard, Refused
from chordage.orchestrator.gateways.tools.web import checked_url, closed_at, target_of

GONE = 410
SECRET_PREFIX = "whsec_"  # noqa: S105 - what the specification puts in front of a secret
ANYWHERE = Guard(allow=("0.0.0.0/0", "::/0"))
_READ = 500  # bytes of an answer, for the words of an error


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    """`url`: of a channel. Without it each address says where to."""

    url: str | None = None
    secret: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    guard: Guard = field(default_factory=Guard)
    timeout: float = 10.0

    @classmethod
    def from_options(cls, options: Mapping[str, Any], environ: Mapping[str, str], place: str) -> Webhook:
        """`place`: of the table in channels.toml, for the words of an error."""
        known = {"url", "secret_env", "headers"}
        if unknown := sorted(set(options) - known):
            raise RoomError(f"{place}: a webhook has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
        url, headers, variable = options.get("url"), options.get("headers", {}), options.get("secret_env")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise RoomError(f"{place}: url is {url!r}: give an address with http:// or https://")
        if not isinstance(headers, Mapping) or not all(isinstance(value, str) for value in headers.values()):
            raise RoomError(f"{place}: headers must be a table of texts")
        if variable is not None and not environ.get(variable):
            raise RoomError(f"{place}: secret_env names {variable}, and that variable is not set")
        secret = secret_of(environ[variable], f"{place}: {variable}") if variable else None
        return cls(url=url, secret=secret, headers=dict(headers), guard=ANYWHERE)

    def poll(self, cursor: str | None) -> Polled:
        """Nothing comes in here: that is what hooks.toml is for."""
        return Polled(messages=(), cursor=cursor)

    def deliver(self, address: Mapping[str, Any], reply: Outgoing) -> None:
        url = self.url or str(address.get("url", ""))
        told, name = {key: value for key, value in address.items() if key != "url"}, shown({"url": url})
        body = json.dumps(body_of(reply, told), ensure_ascii=False, separators=(",", ":")).encode()
        try:
            status, answer, wait = self._post(url, reply.key, body)
        except Refused as error:
            raise Undeliverable(f"{name}: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise TryLater(f"{name} does not answer: {error or type(error).__name__}") from error
        if not 200 <= status < 300:
            said = f"{name} answered {status}{': ' + answer if answer else ''}"
            if status == GONE:
                raise Undeliverable(said)
            raise TryLater(said, wait)

    def close(self) -> None: ...

    def _post(self, url: str, key: str, body: bytes) -> tuple[int, str, float | None]:
        parts = checked_url(url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        deadline = time.monotonic() + self.timeout
        address = self.guard.address_of(host, port)
        connection = checked_connections.to(address, host, port, secure=secure, timeout=self.timeout)
        with closed_at(deadline, connection):
            connection.request("POST", target_of(parts), body=body, headers=self._headers(key, body))
            response = connection.getresponse()
            said = response.read(_READ).decode("utf-8", "replace").replace("\x00", "")
            return response.status, " ".join(said.split())[:200], seconds_of(response.getheader("Retry-After"))

    def _headers(self, key: str, body: bytes) -> dict[str, str]:
        now = int(time.time())
        signed = {"webhook-signature": signatures.standard(self.secret, key, now, body)} if self.secret else {}
        return {
            "User-Agent": "chordage", "Content-Type": "application/json", "Connection": "close", **self.headers,
            "Idempotency-Key": key, "webhook-id": key, "webhook-timestamp": str(now), **signed,
        }  # fmt: skip


def body_of(reply: Outgoing, address: Mapping[str, Any]) -> dict[str, Any]:
    told = {"type": "turn.ended", "turn_id": reply.turn_id, "thread_id": reply.thread_id, **reply.body}
    return {**told, "text": reply.text, **({"address": dict(address)} if address else {})}


def secret_of(text: str, name: str) -> bytes:
    """As it is; or, behind `whsec_`, in base64."""
    if not text.startswith(SECRET_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise RoomError(f"{name} begins with {SECRET_PREFIX} and goes on with what is no base64") from error


def seconds_of(retry_after: str | None) -> float | None:
    """Seconds, or a date."""
    if retry_after is None:
        return None
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
