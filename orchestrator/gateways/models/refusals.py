"""What a provider's error means: by its status, then by its text: some providers answer everything with 400."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.retry import retry_after
from chordage.orchestrator.gateways.models.wire import AttemptFailed

# Not "exceeded your current quota": some providers say that of a rate limit too.
_QUOTA = ("insufficient_quota", "billing_hard_limit", "billing_error", "credit balance is too low")
_CONTEXT = (
    "context_length",
    "context length",
    "context window",
    "maximum context",
    "prompt is too long",
    "input is too long",
    "request_too_large",
)
# An error inside a stream comes with a type and no status.
_STATUS_OF_TYPE = {
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout_error": 408,
    "request_too_large": 413,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "insufficient_quota": 429,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 529,
}


def refused(status: int, headers: Mapping[str, str], body: str) -> AttemptFailed:
    """The failure behind a response other than 200."""
    message = _message(body) or headers.get("location", "") or "no text"
    return AttemptFailed(
        _fault(status, body.lower()), f"{status}: {message}", retry_after=retry_after(headers, datetime.now(UTC))
    )


def error_event(error: object) -> AttemptFailed:
    """The failure behind an error object that came with 200, alone or in the middle of a stream."""
    text = json.dumps(error).lower()
    return AttemptFailed(_fault(_status_in(error), text), f"error in the answer: {_message(text) or text}")


def _fault(status: int, text: str) -> Fault:
    if status == 402 or (400 <= status < 500 and any(sign in text for sign in _QUOTA)):
        return Fault.QUOTA
    if status == 413 or (status in {400, 422} and any(sign in text for sign in _CONTEXT)):
        return Fault.CONTEXT
    match status:
        case 429:
            return Fault.RATE_LIMIT
        case 401 | 403:
            return Fault.AUTH
        case 408:
            return Fault.TIMEOUT
        case 503 | 529:
            return Fault.OVERLOADED
        case _:
            return Fault.SERVER if status >= 500 else Fault.REJECTED


def _status_in(error: object) -> int:
    if not isinstance(error, dict):
        return 500
    for kind in (error.get("code"), error.get("type")):
        if isinstance(kind, int) and 400 <= kind < 600:
            return kind
        if isinstance(kind, str) and kind in _STATUS_OF_TYPE:
            return _STATUS_OF_TYPE[kind]
    return 500


def _message(body: str) -> str:
    """The sentence in an error body, whatever the provider wraps around it."""
    try:
        value: Any = bounds.loads_json(body)
    except ValueError:
        return body
    if isinstance(value, list) and value:
        value = value[0]
    for key in ("error", "message"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return value if isinstance(value, str) else json.dumps(value)
