"""What shows that a delivery comes from whom it says: signatures in three forms, made and verified. Pure.

Nothing of a delivery is read before its seal is right. Every secret and every signature is compared, so that the time
it takes tells neither which of them was near nor where it differs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Headers = Mapping[str, str]  # names in lower case

STANDARD_ID, STANDARD_TIME, STANDARD_SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
GITHUB_ID, GITHUB_SIGNATURE, GITHUB_PREFIX = "x-github-delivery", "x-hub-signature-256", "sha256="

_PLACES = re.compile(r"(\{timestamp\}|\{id\}|\{body\})")
_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)


class Form(StrEnum):
    STANDARD = "standard"
    GITHUB = "github"
    HMAC = "hmac"
    NONE = "none"  # anybody may deliver


class Encoding(StrEnum):
    HEX = "hex"
    BASE64 = "base64"


class Verdict(StrEnum):
    RIGHT = "right"
    UNSIGNED = "unsigned"
    WRONG = "wrong_signature"
    STALE = "stale"


@dataclass(frozen=True, kw_only=True, slots=True)
class Seal:
    form: Form
    secrets: tuple[bytes, ...] = field(default=(), repr=False)  # any of them will do: that is how one is replaced
    tolerance: float = 300.0  # seconds, to either side
    id_header: str | None = None  # all header names in lower case
    replay_window: float = 86_400.0  # seconds in which a copy under another id is refused, where no time is signed
    # Of the form `hmac` alone:
    header: str = "x-signature"
    prefix: str = ""
    encoding: Encoding = Encoding.HEX
    timestamp_header: str | None = None
    signed: str = "{body}"


def verdict(seal: Seal, headers: Headers, body: bytes, now: float) -> Verdict:
    """`now`: seconds since 1970."""
    match seal.form:
        case Form.NONE:
            return Verdict.RIGHT
        case _ if any(not headers.get(name) for name in _needed(seal)):
            return Verdict.UNSIGNED
        case _ if not _is_signed(seal, headers, body):
            return Verdict.WRONG
        case _:
            return Verdict.RIGHT if _is_fresh(seal, headers, now) else Verdict.STALE


def sealed(seal: Seal, delivery: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a delivery that we make ourselves. With several secrets, signed with the first."""
    if seal.form is Form.NONE:
        return {seal.id_header: delivery} if seal.id_header else {}
    headers = {name: value for name, value in _stamps(seal, delivery, timestamp) if name}
    expected = _expected(seal, seal.secrets[0], headers, body)
    return {**headers, _signature_header(seal): expected}


def proof(seal: Seal, headers: Headers, body: bytes) -> str:
    """The same for a delivery that was copied, and for no other: what was signed, in short."""
    return f"sha256:{hashlib.sha256(_content(seal, headers, body)).hexdigest()}"


def leaves_id_unsigned(seal: Seal) -> bool:
    """Whoever has seen a delivery can send it again under another id."""
    return seal.form is Form.GITHUB or (
        seal.form is Form.HMAC and seal.id_header is not None and "{id}" not in seal.signed
    )


def believed_for(seal: Seal) -> float:
    """Seconds from now after which a copy is refused by its time, or may be another delivery."""
    return seal.replay_window if seal.timestamp_header is None else 2 * seal.tolerance


def _stamps(seal: Seal, delivery: str, timestamp: int) -> Iterator[tuple[str | None, str]]:
    if seal.form is Form.STANDARD:
        yield STANDARD_ID, delivery
        yield STANDARD_TIME, str(timestamp)
    else:
        yield seal.id_header, delivery
        yield seal.timestamp_header, str(timestamp)


def _needed(seal: Seal) -> tuple[str, ...]:
    match seal.form:
        case Form.STANDARD:
            return STANDARD_ID, STANDARD_TIME, STANDARD_SIGNATURE
        case Form.HMAC if seal.timestamp_header:
            return seal.header, seal.timestamp_header
        case _:
            return (_signature_header(seal),)


def _signature_header(seal: Seal) -> str:
    match seal.form:
        case Form.STANDARD:
            return STANDARD_SIGNATURE
        case Form.GITHUB:
            return GITHUB_SIGNATURE
        case _:
            return seal.header


def _timestamp(seal: Seal, headers: Headers) -> str | None:
    name = STANDARD_TIME if seal.form is Form.STANDARD else seal.timestamp_header
    return headers.get(name, "") if name else None


def _is_signed(seal: Seal, headers: Headers, body: bytes) -> bool:
    stamp = _timestamp(seal, headers)
    if stamp is not None and not _SECONDS.fullmatch(stamp):
        return False
    given = headers[_signature_header(seal)]
    offered = given.split() if seal.form is Form.STANDARD else [given]
    expected = [_expected(seal, secret, headers, body) for secret in seal.secrets]
    return any([are_same(one, right) for one in offered for right in expected])  # noqa: C419 - all of them


def _is_fresh(seal: Seal, headers: Headers, now: float) -> bool:
    stamp = _timestamp(seal, headers)
    return stamp is None or abs(now - int(stamp)) <= seal.tolerance


def _expected(seal: Seal, secret: bytes, headers: Headers, body: bytes) -> str:
    match seal.form:
        case Form.STANDARD:
            return standard(secret, headers[STANDARD_ID], int(headers[STANDARD_TIME]), body)
        case Form.GITHUB:
            return GITHUB_PREFIX + plain(secret, body)
        case _:
            return seal.prefix + _keyed(secret, _content(seal, headers, body), seal.encoding)


def _content(seal: Seal, headers: Headers, body: bytes) -> bytes:
    """What the form `hmac` signs."""
    known = {
        "{timestamp}": headers.get(seal.timestamp_header or "", "").encode("latin-1"),
        "{id}": headers.get(seal.id_header or "", "").encode("latin-1"),
        "{body}": body,
    }
    return b"".join(known.get(part, part.encode()) for part in _PLACES.split(seal.signed))


def _keyed(secret: bytes, content: bytes, encoding: Encoding) -> str:
    made = hmac.new(secret, content, hashlib.sha256)
    return made.hexdigest() if encoding is Encoding.HEX else base64.b64encode(made.digest()).decode()


# Signatures over the raw bytes of a request, in the forms that are in use. Pure: the clock and the secret come in.


def standard(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Standard Webhooks: the value of `webhook-signature`."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def plain(secret: bytes, body: bytes) -> str:
    """The body alone, in hexadecimal: what GitHub sends behind `sha256=`."""
    return hmac.new(secret, body, hashlib.sha256).hexdigest()


def are_same(given: str, expected: str) -> bool:
    """In a time that tells nothing of where they differ."""
    return hmac.compare_digest(given.encode(), expected.encode())
