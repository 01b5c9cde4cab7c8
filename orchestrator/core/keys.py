"""API keys: how one is written, what is stored of it, and the caller that it makes.

A key reads `ck_<id>_<secret>_<crc>`. The prefix lets scanners of source code find a key that was published; the id
finds its row, and may be logged; the secret has 256 bits of chance; the checksum refuses a typo before the database is
asked. Only the SHA-256 of the secret is stored: a slow hash protects secrets that can be guessed, which this cannot.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import string
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.text import clean_text

PREFIX = "ck_"
USE_STEP = timedelta(minutes=1)  # between two records of the use of a key
ID_LENGTH = 12
SECRET_BYTES = 32
NAME_MAX = 100
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_LETTERS = string.ascii_lowercase + string.digits
_SECRET_LENGTH = 43  # digits of base 62 that hold 256 bits
_CRC_LENGTH = 6
_FORM = re.compile(rf"ck_([a-z0-9]{{{ID_LENGTH}}})_([0-9A-Za-z]{{{_SECRET_LENGTH}}})_([0-9A-Za-z]{{{_CRC_LENGTH}}})")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a part of the ids of its threads: no colon, no @


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyParts:
    """A key as it was sent, with a checksum that is right."""

    id: str
    secret: str = field(repr=False)


class KeyState(StrEnum):
    VALID = "valid"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyTerms:
    """What a key that is to be made may do. None: no limit."""

    name: str
    scopes: frozenset[KeyScope]
    tenant: str | None = None
    agents: frozenset[str] | None = None
    groups: frozenset[Group] | None = None
    expires_at: datetime | None = None
    act_as: bool = False  # whether it may speak for users


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiKey:
    """The row of a key."""

    id: str
    hash: str = field(repr=False)  # of the secret
    name: str
    tenant: str | None
    scopes: frozenset[KeyScope]
    agents: frozenset[str] | None
    groups: frozenset[Group] | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    act_as: bool = False

    def state(self, now: datetime) -> KeyState:
        if self.revoked_at is not None:
            return KeyState.REVOKED
        return KeyState.EXPIRED if self.expires_at is not None and self.expires_at <= now else KeyState.VALID

    def fits(self, secret: str) -> bool:
        """Compared in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(self.hash, hash_of(secret))

    def caller(self) -> Caller:
        """A key without a tenant that may operate, or manage keys, sees the threads of every space."""
        sees_all = self.tenant is None and bool(self.scopes & {KeyScope.OPERATE, KeyScope.ADMIN})
        return Caller(
            id=self.id, tenant=self.tenant, scopes=self.scopes, agents=self.agents, groups=self.groups,
            sees_all=sees_all, may_act_as=self.act_as,
        )  # fmt: skip


def id_from(random: bytes) -> str:
    """As many bytes as an id has letters."""
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in random)


def secret_from(random: bytes) -> str:
    return _base62(int.from_bytes(random, "big"), _SECRET_LENGTH)


def written(key_id: str, secret: str) -> str:
    """The key, as its owner gets it."""
    body = f"{PREFIX}{key_id}_{secret}"
    return f"{body}_{_crc(body)}"


def parse(text: str) -> KeyParts | None:
    """None: this is no key, or there is a typo in it."""
    parts = _FORM.fullmatch(text)
    if parts is None or _crc(text.rpartition("_")[0]) != parts[3]:
        return None
    return KeyParts(id=parts[1], secret=parts[2])


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def check_terms(terms: KeyTerms, now: datetime, *, agents: Collection[str] | None = None) -> None:
    """Raises InvalidMessage with the field that is wrong. `agents`: those of the room, where it is known."""
    if not terms.name.strip() or len(terms.name) > NAME_MAX or clean_text(terms.name) != terms.name:
        raise InvalidMessage(f"give the key a name of 1 to {NAME_MAX} characters", field="name")
    if not terms.name.isprintable():
        raise InvalidMessage("the name of a key has no line breaks and no control characters", field="name")
    if not terms.scopes:
        raise InvalidMessage(f"give at least one scope of {', '.join(KeyScope)}", field="scopes")
    if terms.tenant is not None and not _TENANT.fullmatch(terms.tenant):
        problem = f"{terms.tenant!r:.80} is no tenant: give 1 to 64 letters, digits, dots, dashes and underscores"
        raise InvalidMessage(problem, field="tenant")
    for agent in sorted(terms.agents or ()):
        if agents is not None and agent not in agents:
            raise InvalidMessage(f"there is no agent {agent!r:.80} in the room", field="agents")
    if terms.expires_at is not None and terms.expires_at <= now:
        raise InvalidMessage("the key would have expired already: give a later time", field="expires_at")


def within(terms: KeyTerms, maker: Caller) -> KeyTerms:
    """The terms of a key that this caller makes: no wider in tenant, agents and groups than its own key."""
    if maker.tenant is not None and terms.tenant not in {None, maker.tenant}:
        problem = f"the key {maker.id} makes keys of its own tenant alone, {maker.tenant!r}"
        raise InvalidMessage(problem, field="tenant")
    for field_name, wanted, allowed in (
        ("agents", terms.agents, maker.agents),
        ("groups", terms.groups, maker.groups),
    ):
        if allowed is not None and (wanted is None or not wanted <= allowed):
            problem = f"the key {maker.id} makes keys for its own {field_name} alone: {', '.join(sorted(allowed))}"
            raise InvalidMessage(problem, field=field_name)
    return KeyTerms(
        name=terms.name, scopes=terms.scopes, tenant=maker.tenant or terms.tenant, agents=terms.agents,
        groups=terms.groups, expires_at=terms.expires_at, act_as=terms.act_as,
    )  # fmt: skip


def _crc(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CRC_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = ""
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits
