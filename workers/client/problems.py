"""From an answer of the server that refuses a request to the exception of `chordage` that says why."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx

from chordage.orchestrator.core import errors
from chordage.orchestrator.core.retry import retry_after

PREFIX = "urn:chordage:problem:"
RETRY_SECONDS = 5.0  # where the server does not say when
SHOWN = 300  # characters of an answer that is no problem document


def error_of(response: httpx.Response, *, decides: bool = False) -> errors.ChordageError:
    """`decides`: the request holds decisions, so what is invalid is one of them."""
    problem = _problem(response)
    detail = str(problem.get("detail") or _described(response))
    field = str(problem.get("field") or "")
    match str(problem.get("type", "")).removeprefix(PREFIX), response.status_code:
        case "unknown_agent", _:
            return errors.UnknownAgent(detail)
        case "queue_full", _:
            return errors.QueueFull(detail, seconds_until_retry(response) or RETRY_SECONDS)
        case "invalid", _ if decides:
            return errors.InvalidDecision(detail, field=field)
        case _, 412:
            return _step_refused(detail, problem)
        case _, 409 if "code" in problem:
            return _step_refused(detail, problem)
        case _, 409:
            return errors.Conflict(detail)
        case _, 401:
            return errors.Unauthenticated(detail)
        case _, 403:
            return errors.Forbidden(detail, scope=problem.get("scope"))
        case _, 404 | 410:
            return errors.NotFound(detail)
        case _, 413:
            return errors.InvalidMessage(detail, field=field, too_large=True)
        case _, 429:
            return errors.TooManyRequests(detail, seconds_until_retry(response) or RETRY_SECONDS)
        case _, 400 | 415 | 422:
            return errors.InvalidMessage(detail, field=field)
        case _, status if status >= 500:
            return errors.Unavailable(detail)
        case _:
            return errors.UserError(detail)


def seconds_until_retry(response: httpx.Response) -> float | None:
    return retry_after(response.headers, datetime.now(UTC))


def _step_refused(detail: str, problem: Mapping[str, Any]) -> errors.StepRefused:
    rev = problem.get("rev")
    return errors.StepRefused(
        detail,
        str(problem.get("code", "stale_rev")),
        rev if isinstance(rev, int) else None,
        str(problem.get("standing", "")),
    )


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _described(response: httpx.Response) -> str:
    """Of an answer that is none of ours: a proxy's, or that of another program at this address."""
    target = response.headers.get("location")
    where = f"{response.request.method} {response.request.url}"
    if response.is_redirect and target:
        return f"{where} is redirected to {target}: give the address of the server itself as base_url"
    text = " ".join(response.text.split())[:SHOWN]
    return f"{where} was answered with HTTP {response.status_code} {response.reason_phrase}: {text or 'no text'}"
