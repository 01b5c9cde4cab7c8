"""What a delivery is answered. A stranger is told the same whatever was wrong; a known sender, what to change."""

from __future__ import annotations

import math
from collections.abc import Sequence

import structlog
from starlette.responses import JSONResponse, Response

from chordage.orchestrator.core.errors import Conflict, InvalidMessage, QueueFull, Unavailable, UserError
from chordage.orchestrator.core.webhooks import Binding, Outcome
from chordage.orchestrator.loops import problems

log = structlog.get_logger()

_LATER = {"Retry-After": problems.TRY_AGAIN_AFTER}
_REFUSALS = {
    Outcome.UNSIGNED: (401, "unauthorized", "a signature is needed", {"WWW-Authenticate": "Signature"}),
    Outcome.WRONG: (403, "forbidden", "the signature is not right", {}),
    Outcome.STALE: (403, "forbidden", "the signature is not right", {}),
    Outcome.TOO_LARGE: (413, "too_large", "the body is too large", {"Connection": "close"}),
    Outcome.TOO_SLOW: (408, "request_timeout", "the body did not come in time", {"Connection": "close"}),
    Outcome.CROWDED: (
        503,
        "unavailable",
        "it cannot be taken now; send it again later",
        {**_LATER, "Connection": "close"},
    ),
    Outcome.BROKEN: (422, "invalid", "the body is not whole", {}),  # nobody is there to read it
    Outcome.UNAVAILABLE: (503, "unavailable", "it cannot be taken now; send it again later", _LATER),
}


def accepted(turn_id: str, thread_id: str) -> Response:
    """Without a place where to read it: what a hook has said is for the operator to read."""
    return JSONResponse({"turn_id": turn_id, "thread_id": thread_id}, status_code=202)


def ignored() -> Response:
    return Response(status_code=204)


def unknown() -> Response:
    """Word for word what the API says of a path that is not there."""
    return problems.answer(404, "not_found", "Not Found")


def wrong_method(allowed: Sequence[str]) -> Response:
    return problems.answer(
        405, "method_not_allowed", "Method Not Allowed", headers={"Allow": ", ".join(sorted(allowed))}
    )


def refused(outcome: Outcome) -> Response:
    status, kind, told, headers = _REFUSALS[outcome]
    return problems.answer(status, kind, told, headers=headers)


def replayed(turn_id: str) -> Response:
    told = f"this delivery was taken before: it is turn {turn_id}"
    return problems.answer(409, "replayed", told, turn_id=turn_id)


def of_error(binding: Binding, error: Exception) -> tuple[Outcome, Response]:
    match error:
        case InvalidMessage(too_large=True):
            return Outcome.TOO_LARGE, problems.answer(413, "too_large", str(error), field=error.field)
        case InvalidMessage():
            return Outcome.MALFORMED, problems.answer(422, "invalid", str(error), field=error.field)
        case QueueFull():
            after = {"Retry-After": str(math.ceil(error.retry_after))}
            return Outcome.FULL, problems.answer(429, "queue_full", str(error), headers=after)
        case Conflict():
            return Outcome.BUSY, problems.answer(409, "conflict", str(error))
        case Unavailable():
            log.error("a delivery was not taken: a service does not answer", hook=binding.name, error=str(error))
            return Outcome.UNAVAILABLE, refused(Outcome.UNAVAILABLE)
        case _:
            return _at_fault(binding, error)


def _at_fault(binding: Binding, error: Exception) -> tuple[Outcome, Response]:
    """The room is: its agent, or its decoder. Somebody can put it right, so the sender may come again."""
    told = str(error) if isinstance(error, UserError) else repr(error)
    log.error("a delivery was not taken: something of the room is broken", hook=binding.name, error=told)
    return Outcome.FAILED, refused(Outcome.UNAVAILABLE)
