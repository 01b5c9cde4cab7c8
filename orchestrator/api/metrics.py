"""`GET /metrics` for Prometheus: the counters and gauges of the fleet, and the requests of this process."""

from __future__ import annotations

import hmac

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse

from chordage.orchestrator.api import problems
from chordage.orchestrator.api.authentication import sent_key
from chordage.orchestrator.api.callers import known_for_fleet
from chordage.orchestrator.api.guards import JsonRoute, headers_of
from chordage.orchestrator.api.problems import documented
from chordage.orchestrator.api.services import services_of
from chordage.orchestrator.core.callers import KeyScope
from chordage.orchestrator.core.metrics import FAMILIES
from chordage.orchestrator.core.metrics_text import OPENMETRICS, PROMETHEUS, text_of

router = APIRouter(route_class=JsonRoute, tags=["fleet"])


def _check_reader(request: Request, response: Response) -> None:
    """The token of monitors, or a key that reads the whole fleet."""
    token, sent = services_of(request).metrics_token, sent_key(headers_of(request.scope))
    if token is None or sent is None or not hmac.compare_digest(sent.encode(), token.encode()):
        known_for_fleet(request, response, KeyScope.READ)


@router.get(
    "/metrics",
    operation_id="read_metrics",
    summary="Read the metrics of the fleet",
    response_class=PlainTextResponse,
    responses=documented(*problems.OF_READS),
    dependencies=[Depends(_check_reader)],
)
def read_metrics(request: Request) -> Response:
    """For Prometheus: text in its format, or in that of OpenMetrics where `Accept` asks for it. Numbers of the fleet
    may be five seconds old. With `CHORDAGE_METRICS_TOKEN` the server also takes that token in place of a key.
    """
    services = services_of(request)
    openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
    text = text_of(FAMILIES.values(), {**services.metrics(), **services.meter.read()}, openmetrics=openmetrics)
    return Response(text, media_type=OPENMETRICS if openmetrics else PROMETHEUS)
