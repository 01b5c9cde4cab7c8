"""Signatures of webhook deliveries in three forms: made, and verified.

No part of a delivery is read before its signature is verified. Every secret is compared with every signature in
constant time, so that the duration shows neither which of them was close nor where it differs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Headers = Mapping[str, str]  # names in lower case

STANDARD_ID, STANDARD_TIME, STANDARD_SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
GITHUB_ID, GITHUB_SIGNATURE, GITHUB_PREFIX = "x-github-delivery", "x-hub-signature-256", "sha256="

_FIELDS = re.compile(r"(\{timestamp\}|\{id\}|\{body\})")
_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)


class Form(StrEnum):
    STANDARD = "standard"
    GITHUB = "github"
    HMAC = "hmac"
    NONE = "none"  # unsigned deliveries are accepted


class Encoding(StrEnum):
    HEX = "hex"
    BASE64 = "base64"


class SignatureCheck(StrEnum):
    RIGHT = "right"
    UNSIGNED = "unsigned"
    WRONG = "wrong_signature"
    STALE = "stale"


@dataclass(frozen=True, kw_only=True, slots=True)
class Seal:
    form: Form
    secrets: tuple[bytes, ...] = field(default=(), repr=False)  # any of them is valid: so one can be replaced
    tolerance: float = 300.0  # seconds, to either side
    id_header: str | None = None  # all header names in lower case
    replay_window: float = 86_400.0  # seconds in which a copy under another id is refused, where no time is signed
    # Only for the form `hmac`:
    header: str = "x-signature"
    prefix: str = ""
    encoding: Encoding = Encoding.HEX
    timestamp_header: str | None = None
    signed: str = "{body}"


def verify(seal: Seal, headers: Headers, body: bytes, now: float) -> SignatureCheck:
    """`now`: seconds since 1970."""
    if seal.form is Form.NONE:
        return SignatureCheck.RIGHT
    if any(not headers.get(name) for name in _required(seal)):
        return SignatureCheck.UNSIGNED
    stamped = STANDARD_TIME if seal.form is Form.STANDARD else seal.timestamp_header
    timestamp = headers.get(stamped, "") if stamped else None
    if (timestamp is not None and not _SECONDS.fullmatch(timestamp)) or not _is_signed(seal, headers, body):
        return SignatureCheck.WRONG
    is_fresh = timestamp is None or abs(now - int(timestamp)) <= seal.tolerance
    return SignatureCheck.RIGHT if is_fresh else SignatureCheck.STALE


def sealed(seal: Seal, delivery: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a delivery that we send. With several secrets, signed with the first."""
    if seal.form is Form.NONE:
        return {seal.id_header: delivery} if seal.id_header else {}
    if seal.form is Form.STANDARD:
        headers = {STANDARD_ID: delivery, STANDARD_TIME: str(timestamp)}
    else:
        stamps = ((seal.id_header, delivery), (seal.timestamp_header, str(timestamp)))
        headers = {name: value for name, value in stamps if name}
    return {**headers, _signature_header(seal): _expected(seal, seal.secrets[0], headers, body)}


def proof(seal: Seal, headers: Headers, body: bytes) -> str:
    """A digest of what was signed: the same for a copy of a delivery, different for any other."""
    return f"sha256:{hashlib.sha256(_content(seal, headers, body)).hexdigest()}"


def leaves_id_unsigned(seal: Seal) -> bool:
    """Whether a copy of a delivery can be sent under another id."""
    return seal.form is Form.GITHUB or (
        seal.form is Form.HMAC and seal.id_header is not None and "{id}" not in seal.signed
    )


def believed_for(seal: Seal) -> float:
    """Seconds in which a copy has to be recognised. After that its timestamp is too old, or it counts as new."""
    return seal.replay_window if seal.timestamp_header is None else 2 * seal.tolerance


def standard(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Standard Webhooks: the value of `webhook-signature`."""
    return "v1," + _hmac(secret, f"{message_id}.{timestamp}.".encode() + body, Encoding.BASE64)


def _required(seal: Seal) -> tuple[str, ...]:
    match seal.form:
        case Form.STANDARD:
            return STANDARD_ID, STANDARD_TIME, STANDARD_SIGNATURE
        case Form.HMAC if seal.timestamp_header:
            return seal.header, seal.timestamp_header
        case _:
            return (_signature_header(seal),)


def _signature_header(seal: Seal) -> str:
    return {Form.STANDARD: STANDARD_SIGNATURE, Form.GITHUB: GITHUB_SIGNATURE}.get(seal.form, seal.header)


def _is_signed(seal: Seal, headers: Headers, body: bytes) -> bool:
    value = headers[_signature_header(seal)]
    signatures = value.split() if seal.form is Form.STANDARD else [value]
    expected = [_expected(seal, secret, headers, body) for secret in seal.secrets]
    return any([are_same(signature, right) for signature in signatures for right in expected])  # noqa: C419 - all


def are_same(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _expected(seal: Seal, secret: bytes, headers: Headers, body: bytes) -> str:
    match seal.form:
        case Form.STANDARD:
            return standard(secret, headers[STANDARD_ID], int(headers[STANDARD_TIME]), body)
        case Form.GITHUB:
            return GITHUB_PREFIX + _hmac(secret, body, Encoding.HEX)
        case _:
            return seal.prefix + _hmac(secret, _content(seal, headers, body), seal.encoding)


def _content(seal: Seal, headers: Headers, body: bytes) -> bytes:
    """The bytes that the form `hmac` signs."""
    values = {
        "{timestamp}": headers.get(seal.timestamp_header or "", "").encode("latin-1"),
        "{id}": headers.get(seal.id_header or "", "").encode("latin-1"),
        "{body}": body,
    }
    return b"".join(values.get(part, part.encode()) for part in _FIELDS.split(seal.signed))


def _hmac(secret: bytes, content: bytes, encoding: Encoding) -> str:
    digest = hmac.new(secret, content, hashlib.sha256)
    return digest.hexdigest() if encoding is Encoding.HEX else base64.b64encode(digest.digest()).decode()
