"""Where the HTTP clients find the server, who they are, and how a call becomes a request."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import httpx

from chordage.orchestrator.core.errors import ConfigError, InvalidMessage, Unavailable
from chordage.orchestrator.gateways.proxies import proxy_of
from chordage.workers.client.calls import HttpCall

T = TypeVar("T")

URL_VARIABLE = "CHORDAGE_URL"
KEY_VARIABLE = "CHORDAGE_KEY"
DEFAULT_URL = "http://127.0.0.1:8630"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # beyond what the server may wait on purpose

WAIT_SECONDS = 20.0  # in one request
POLL_SECONDS = 1.0  # where a wait ends at once, because too many callers wait already


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerAddress:
    base_url: str
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, base_url: str | None, key: str | None) -> ServerAddress:
        """By the arguments, or by the environment."""
        url = (base_url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is no address of a server: give base_url or {URL_VARIABLE} as {DEFAULT_URL!r}")
        given = (key or os.environ.get(KEY_VARIABLE) or "").strip()  # a key that was read from a file ends its line
        if not (given.isascii() and given.isprintable() and " " not in given):
            problem = f"the key holds a character that no key has: give it as it was printed, as key or {KEY_VARIABLE}"
            raise ConfigError(problem)
        return cls(base_url=url, key=given or None)

    def options(self) -> dict[str, Any]:
        """Of the client of `httpx`. Proxies as everywhere in Chordage: this machine itself is reached directly."""
        return {
            "proxy": proxy_of(os.environ, self.base_url),
            "trust_env": False,
            "verify": httpx.create_ssl_context(),
            "timeout": httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
        }

    def request(self, call: HttpCall[Any]) -> dict[str, Any]:
        """The arguments of `httpx.Client.request`."""
        headers = {"User-Agent": "chordage", "Accept": "application/json", **call.headers}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        content = None
        if call.body is not None:
            headers["Content-Type"] = "application/json"
            content = as_json(call.body)
        return {
            "method": call.method,
            "url": f"{self.base_url}{call.path}",
            "params": dict(call.query),
            "content": content,
            "headers": headers,
            "timeout": httpx.Timeout(ANSWER_SECONDS + call.waits, connect=CONNECT_SECONDS),
        }


def as_json(body: Mapping[str, Any]) -> bytes:
    """With escapes for what is no Unicode text: the server says which field has it."""
    try:
        return json.dumps(body, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise InvalidMessage(f"give the fields as JSON: {error}", field="body") from error


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} {value!r:.80} has no form in JSON")


def result_of(call: HttpCall[T], response: httpx.Response) -> T:
    try:
        return call.read(response.json())
    except (ValueError, KeyError, TypeError, IndexError) as error:  # pydantic's is a ValueError
        where = f"{call.method} {response.request.url.copy_with(query=None)}"
        raise Unavailable(
            f"{where} was answered with HTTP {response.status_code}, and not as a server of chordage answers: {error}"
        ) from error


class RetryClock:
    """The time of one wait for a turn. `timeout` None: without an end."""

    def __init__(self, timeout: float | None, turn_id: str) -> None:
        self._timeout = timeout
        self._turn_id = turn_id
        self._until = None if timeout is None else time.monotonic() + timeout
        self._asked_at = 0.0
        self._asked_for = 0.0

    def seconds(self, longest: float) -> float:
        """That the server should wait in the next request."""
        self._asked_at = time.monotonic()
        self._asked_for = min(longest, self._left())
        return self._asked_for

    def pause(self, status: str) -> float:
        """Until the next request: none after the server has waited. Raises TimeoutError."""
        left = self._left()
        if left <= 0:
            raise TimeoutError(f"turn {self._turn_id} is {status} after {self._timeout:g} s")
        has_waited = time.monotonic() - self._asked_at >= self._asked_for / 2
        return 0.0 if has_waited and self._asked_for > 0 else min(POLL_SECONDS, left)

    def _left(self) -> float:
        return WAIT_SECONDS if self._until is None else self._until - time.monotonic()
