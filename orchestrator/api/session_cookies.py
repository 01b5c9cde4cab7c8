"""Sessions of the console: a cookie that says who logged in, signed with a secret that all processes share.

The cookie holds the id of a key, or that a person came by a one-time link, the time, and the id of the session, to
which the token of its forms is bound. The session has a row while it is open: it ends after twelve hours, with its key,
or when its row is deleted. An open one is believed for five seconds in each process. The cookie does not hold the
secret of the key.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
import secrets
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from chordage.orchestrator.api.authentication import BELIEVED, KEPT, Authentication
from chordage.orchestrator.core.callers import OPERATOR, Caller
from chordage.orchestrator.core.errors import Unauthenticated
from chordage.orchestrator.core.logins import WebSession

COOKIE = "chordage_session"
LASTS = timedelta(hours=12)
_LOOKS_FORWARD = timedelta(minutes=5)  # clocks of two machines
_BY_LINK = ""  # in place of the id of a key
_SPENT = "the link was used, or is older than ten minutes: `chordage keys link` makes another"


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedSession:
    """A session whose signature is right. `key_id`: None if it began with a link."""

    key_id: str | None
    began_at: datetime
    id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRows:
    begin: Callable[[WebSession], None]
    is_open: Callable[[str], bool]
    leave: Callable[[str], None]


class Sessions:
    """`secret`: asked once. `use_link`: whether the token of a link is good, for the first who asks."""

    def __init__(
        self,
        authentication: Authentication,
        *,
        secret: Callable[[], bytes],
        use_link: Callable[[str], bool],
        rows: SessionRows,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authentication = authentication
        self._read_secret = secret
        self._use_link = use_link
        self._rows = rows
        self._now = now
        self._clock = clock
        self._secret: bytes | None = None
        self._lock = threading.Lock()
        self._open: OrderedDict[str, float] = OrderedDict()  # until when each session is believed

    def begin_with_key(self, text: str, address: str | None) -> tuple[Caller, str]:
        """The caller, and the value of its cookie. Raises Unauthenticated."""
        key = self._authentication.by_text(text.strip())
        return key.caller(), self._begun(key.id, key.tenant, address)

    def begin_with_link(self, token: str, address: str | None) -> tuple[Caller, str]:
        """As above."""
        if not token or not self._use_link(token):
            raise Unauthenticated(_SPENT)
        return OPERATOR, self._begun(None, None, address)

    def caller(self, cookie: str) -> Caller | None:
        """None: the session is not valid, or no longer."""
        session = self._read(cookie)
        if session is None or not self._is_open(session.id):
            return None
        if session.key_id is None:
            return OPERATOR
        key = self._authentication.by_id(session.key_id)
        return None if key is None else key.caller()

    def form_token(self, cookie: str) -> str | None:
        session = self._read(cookie)
        return None if session is None else self._mac("form", session.id)

    def form_token_of(self, caller_id: str) -> str:
        """Of a person without a cookie, whom a proxy names."""
        return self._mac("form", caller_id)

    def id_of(self, cookie: str) -> str | None:
        session = self._read(cookie)
        return None if session is None else session.id

    def leave(self, cookie: str) -> None:
        """At once in this process, in others when they believe in it no longer."""
        if (session := self._read(cookie)) is not None:
            self._rows.leave(session.id)
            self.forget()

    def forget(self) -> None:
        """Ask for each session again: one was ended."""
        with self._lock:
            self._open.clear()

    def _is_open(self, session_id: str) -> bool:
        with self._lock:
            if self._open.get(session_id, 0.0) > self._clock():
                return True
        until = self._clock() + BELIEVED
        if not self._rows.is_open(session_id):
            return False
        with self._lock:
            self._open[session_id] = until
            self._open.move_to_end(session_id)
            while len(self._open) > KEPT:
                self._open.popitem(last=False)
        return True

    def _begun(self, key_id: str | None, tenant: str | None, address: str | None) -> str:
        now = self._now()
        session = WebSession(
            id=secrets.token_hex(16), key_id=key_id, tenant=tenant, address=address, began_at=now,
            expires_at=now + LASTS,
        )  # fmt: skip
        self._rows.begin(session)
        return self._signed(session)

    def _signed(self, session: WebSession) -> str:
        content = json.dumps([session.key_id or _BY_LINK, int(session.began_at.timestamp()), session.id])
        body = urlsafe_b64encode(content.encode()).decode().rstrip("=")
        return f"{body}.{self._mac('session', body)}"

    def _read(self, cookie: str) -> SignedSession | None:
        body, _, mac = cookie.partition(".")
        if not hmac.compare_digest(self._mac("session", body).encode(), mac.encode("utf-8", "replace")):
            return None
        try:
            key_id, began, session_id = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (binascii.Error, ValueError):
            return None
        began_at, now = datetime.fromtimestamp(began, UTC), self._now()
        if not began_at - _LOOKS_FORWARD <= now < began_at + LASTS:
            return None
        return SignedSession(key_id=key_id or None, began_at=began_at, id=session_id)

    def _mac(self, purpose: str, content: str) -> str:
        if self._secret is None:
            self._secret = self._read_secret()
        message = f"{purpose}:{content}".encode("utf-8", "replace")
        return urlsafe_b64encode(hmac.digest(self._secret, message, hashlib.sha256)).decode().rstrip("=")
