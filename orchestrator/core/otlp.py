"""Spans as OTLP writes them in JSON: an ExportTraceServiceRequest, piece by piece, the same bytes each time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.inert import inert_json
from chordage.orchestrator.core.spans import Span, SpanEvent, SpanLink

SERVICE = "chordage"
TRACES_PATH = "/v1/traces"
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ERROR = 2


def endpoint(url: str) -> str:
    """Where traces are posted: the URL itself if it has a path, or the usual path behind it."""
    parts = urlsplit(url)
    return url if parts.path.strip("/") else urlunsplit(parts._replace(path=TRACES_PATH))


def headers_from(text: str) -> dict[str, str]:
    """Of `OTEL_EXPORTER_OTLP_HEADERS`: name=value with commas between them, values as in a URL. Raises ConfigError."""
    headers: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, mark, value = pair.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not mark or not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ConfigError(
                "OTEL_EXPORTER_OTLP_HEADERS is not name=value,name=value: a name has letters, digits and hyphens, and "
                "what else a value has than visible ASCII, or a comma, is written as %2C"
            )
        headers[name.lower()] = value
    return headers


def document(spans: Iterable[Span]) -> Iterator[str]:
    """In pieces: a tree may have more spans than fit into memory."""
    resource = {"attributes": _attributes({"service.name": SERVICE})}
    yield f'{{"resourceSpans":[{{"resource":{_json(resource)},"scopeSpans":[{{"scope":{{"name":"{SERVICE}"}},"spans":['
    for number, span in enumerate(spans):
        yield f"{',' if number else ''}{_json(_span(span))}"
    yield "]}]}]}\n"


def _span(span: Span) -> dict[str, Any]:
    status = {"code": _ERROR, **({"message": span.detail} if span.detail else {})} if span.is_error else {}
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        **({"parentSpanId": span.parent_id} if span.parent_id else {}),
        "name": span.name,
        "kind": span.kind.value,
        "startTimeUnixNano": _nanos(span.start),
        "endTimeUnixNano": _nanos(span.end),
        "attributes": _attributes(span.attributes),
        **({"events": [_event(event) for event in span.events]} if span.events else {}),
        **({"links": [_link(link) for link in span.links]} if span.links else {}),
        "status": status,
    }


def _event(event: SpanEvent) -> dict[str, Any]:
    return {"timeUnixNano": _nanos(event.at), "name": event.name, "attributes": _attributes(event.attributes)}


def _link(link: SpanLink) -> dict[str, Any]:
    flags = {} if link.flags is None else {"flags": link.flags}
    relation = _attributes({"chordage.relation": link.relation})
    return {"traceId": link.trace_id, "spanId": link.span_id, "attributes": relation, **flags}


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    """Structured contents are one text of JSON, as the conventions want it on spans."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case list() if all(isinstance(each, str) for each in value):
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": _json(value)}


def _nanos(at: datetime) -> str:
    return str((at - _EPOCH) // timedelta(microseconds=1) * 1000)


def _json(value: Any) -> str:
    return inert_json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
