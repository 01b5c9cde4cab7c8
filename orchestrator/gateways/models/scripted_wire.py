"""What a wire format must be able to do to serve a script; `scripted_openai` and `scripted_anthropic` are the two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.gateways.models.scripted import Line

Json: TypeAlias = dict[str, Any]


class Format(Protocol):
    def whole(self, line: Line, model: str) -> Json: ...
    def events(self, line: Line, model: str, chunk: int) -> Iterator[Json]: ...
    def encoded(self, event: Json) -> bytes: ...
    def error(self, fault: Fault) -> Json: ...
    def without_choices(self, line: Line, model: str) -> Json: ...

    last: bytes  # what ends a stream


STATUS = {
    Fault.RATE_LIMIT: 429,
    Fault.OVERLOADED: 529,
    Fault.SERVER: 500,
    Fault.TIMEOUT: 408,
    Fault.CONNECTION: 502,
    Fault.TRUNCATED: 500,
    Fault.MALFORMED: 500,
    Fault.QUOTA: 429,
    Fault.AUTH: 401,
    Fault.CONTEXT: 400,
    Fault.REJECTED: 400,
}


SENTENCES = {
    Fault.CONTEXT: "prompt is too long: it does not fit the context window",
    Fault.QUOTA: "Your credit balance is too low",
    Fault.RATE_LIMIT: "too many requests",
}
