"""The spans of a run over HTTP, as OTLP writes them in JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import StreamingResponse

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.callers import needs, require
from chordage.orchestrator.api.guards import json_router
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.api.turns import Id
from chordage.orchestrator.core import otlp
from chordage.orchestrator.core.callers import Caller, KeyScope
from chordage.orchestrator.views import spans

_SPAN = {
    "traceId": "01980f3c5d2a7b1c8a4e9f0d12345678",
    "spanId": "235ad61a9cddc3ac",
    "name": "invoke_agent clerk",
    "kind": 1,
    "startTimeUnixNano": "1795132800000000000",
    "endTimeUnixNano": "1795132802000000000",
    "attributes": [{"key": "gen_ai.agent.name", "value": {"stringValue": "clerk"}}],
    "status": {},
}
_EXAMPLE = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "chordage"}}]},
            "scopeSpans": [{"scope": {"name": "chordage"}, "spans": [_SPAN]}],
        }
    ]
}
_OTLP: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "An ExportTraceServiceRequest of OTLP, as a collector takes it at `/v1/traces`.",
        "content": {"application/json": {"schema": {"type": "object"}, "example": _EXAMPLE}},
    }
}

Contents = Annotated[
    bool, Query(description="With messages, arguments and results, which needs the scope `payloads` too.")
]

router = json_router("runs")


@router.get(
    "/runs/{run_id}/traces",
    operation_id="read_spans_of_run",
    summary="Read the spans of a run and its whole tree, as OTLP",
    response_class=StreamingResponse,
    responses={**documented(*problems.OF_READS, 404), **_OTLP},
)
def of_run(
    request: Request, run_id: Id, caller: Annotated[Caller, needs(KeyScope.READ)], contents: Contents = False
) -> StreamingResponse:
    """Of the tree that the run is part of, made of the rows at this moment: also of a run that waits, that lost its
    workers, or that ended long ago. Of a tree that is done the bytes are the same each time.
    """
    return _answer(request, run_id, caller, contents=contents)


@router.get(
    "/turns/{turn_id}/traces",
    operation_id="read_spans_of_turn",
    summary="Read the spans of the run that handled a message, as OTLP",
    response_class=StreamingResponse,
    responses={**documented(*problems.OF_READS, 404), **_OTLP},
)
def of_turn(
    request: Request, turn_id: Id, caller: Annotated[Caller, needs(KeyScope.READ)], contents: Contents = False
) -> StreamingResponse:
    """Of a turn that was merged into another, those of that one. 404 also while a turn has no run."""
    run_id = spans.run_of_turn(services_of(request).rt.store, turn_id, space=caller.reach)
    return _answer(request, run_id, caller, contents=contents)


def _answer(request: Request, run_id: str, caller: Caller, *, contents: bool) -> StreamingResponse:
    if contents:
        require(caller, KeyScope.PAYLOADS, "a trace with its contents")
    found = spans.trace_spans(services_of(request).rt.store, run_id, contents=contents, space=caller.reach)
    return StreamingResponse(_encoded(otlp.document(found)), media_type="application/json")


def _encoded(parts: Iterator[str]) -> Iterator[bytes]:
    """In pieces that are worth a write."""
    piece = bytearray()
    for part in parts:
        piece += part.encode()
        if len(piece) >= 65_536:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)
