"""Signatures over the raw bytes of a request, in the forms that are in use. Pure: the clock and the secret come in."""

from __future__ import annotations

import base64
import hashlib
import hmac


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
