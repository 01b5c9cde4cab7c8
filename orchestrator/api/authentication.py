"""Who a request comes from: the key that it carries, or this machine.

A key that was found is believed for five seconds in each process, so that a revoked key works no longer than that. A
request without a key is taken only where this machine alone can have sent it: the server listens on loopback, was
called by a name of loopback, and no proxy passed the request on.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from chordage.orchestrator.core import keys
from chordage.orchestrator.core.callers import LOCAL, Caller
from chordage.orchestrator.core.errors import Unauthenticated
from chordage.orchestrator.core.hosts import is_loopback
from chordage.orchestrator.core.keys import ApiKey, KeyState

BELIEVED = 5.0  # seconds
KEPT = 1000  # keys in memory
# What proxies add, besides every header that begins with X-Forwarded.
FORWARDED = (
    "forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip",
)  # fmt: skip
_NO_KEY = "this server wants a key with every request: send it as `Authorization: Bearer ck_…` or as `X-Api-Key: ck_…`"
_NOT_VALID = "the key is not valid: it has a typo, was revoked, has expired or was never made"


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRows:
    """`find`: by its id. `record_use`: called at most once a minute by each process."""

    find: Callable[[str], ApiKey | None]
    record_use: Callable[[ApiKey], None]


class _Believed(NamedTuple):
    key: ApiKey
    until: float


class Authentication:
    """The callers of one process of the server. `address`: where it listens; None: every request needs a key."""

    def __init__(
        self,
        rows: KeyRows,
        *,
        address: str | None,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows = rows
        self._is_local = address is not None and is_loopback(address)
        self._now = now
        self._clock = clock
        self._lock = threading.Lock()
        self._believed: OrderedDict[str, _Believed] = OrderedDict()

    def __call__(self, headers: Mapping[str, str]) -> Caller:
        """Names of headers are in lower case. Raises Unauthenticated."""
        sent = sent_key(headers)
        is_from_here = self._is_local and _is_from_here(headers)
        if is_from_here and (sent is None or not sent.startswith(keys.PREFIX)):
            return LOCAL  # clients of other protocols insist on sending a key of some kind
        if sent is None:
            raise Unauthenticated(_NO_KEY)
        return self.by_text(sent).caller()

    def by_text(self, text: str) -> ApiKey:
        """Raises Unauthenticated."""
        parts = keys.parse(text)
        believed = self._valid(parts.id) if parts is not None else None
        if parts is None or believed is None or not believed.key.fits(parts.secret):
            raise Unauthenticated(_NOT_VALID)
        return self._used(believed)

    def by_id(self, key_id: str) -> ApiKey | None:
        """For a session that has proved who it is. None: the key is not valid any more."""
        believed = self._valid(key_id)
        return None if believed is None else self._used(believed)

    def is_valid(self, caller: Caller) -> bool:
        """Whether its key is valid still. A caller without a key always is."""
        return caller.id == LOCAL.id or self.by_id(caller.id) is not None

    def caller_of(self, caller_id: str) -> Caller | None:
        """Who has shown itself before, as it is known now."""
        if caller_id == LOCAL.id:
            return LOCAL if self._is_local else None
        key = self.by_id(caller_id)
        return None if key is None else key.caller()

    def _valid(self, key_id: str) -> _Believed | None:
        """The key, if it is valid now; as it was at most five seconds ago."""
        with self._lock:
            believed = self._believed.get(key_id)
        if believed is None or believed.until <= self._clock():
            believed = self._look_up(key_id)
        return believed if believed is not None and believed.key.state(self._now()) is KeyState.VALID else None

    def _look_up(self, key_id: str) -> _Believed | None:
        until = self._clock() + BELIEVED
        key = self._rows.find(key_id)
        if key is None:
            with self._lock:
                self._believed.pop(key_id, None)
            return None
        return self._believe(_Believed(key, until))

    def _believe(self, believed: _Believed) -> _Believed:
        with self._lock:
            self._believed[believed.key.id] = believed
            self._believed.move_to_end(believed.key.id)
            while len(self._believed) > KEPT:
                self._believed.popitem(last=False)
        return believed

    def _used(self, believed: _Believed) -> ApiKey:
        key, now = believed.key, self._now()
        if key.last_used_at is None or now - key.last_used_at >= keys.USE_STEP:
            self._rows.record_use(key)
            key = replace(key, last_used_at=now)
            self._believe(_Believed(key, believed.until))
        return key


def sent_key(headers: Mapping[str, str]) -> str | None:
    """Names of headers are in lower case."""
    if (key := headers.get("x-api-key")) is not None:
        return key.strip()
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def _is_from_here(headers: Mapping[str, str]) -> bool:
    """Also a page that calls has to be one of this machine."""
    if any(name in FORWARDED or name.startswith("x-forwarded") for name in headers):
        return False
    if headers.get("sec-fetch-site") == "cross-site" and "origin" not in headers:
        return False  # an image or a script, say: the page cannot read it, but it could ask whether something is there
    addresses = [f"//{headers.get('host', '')}", *([headers["origin"]] if "origin" in headers else [])]
    return all(is_loopback(_host_in(address)) for address in addresses)


def _host_in(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
