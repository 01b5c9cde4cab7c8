"""What a wire format must be able to do; `openai` and `anthropic` are the two there are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from chordage.orchestrator.core.model import Fault, Prompt, Reply, StopReason, ToolAsk
from chordage.orchestrator.gateways.models.attempt import AttemptFailed
from chordage.orchestrator.gateways.models.shape import arguments


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Whom a request goes to. `name` is what we call the model, `model` what its provider calls it."""

    provider: str
    model: str
    max_tokens_key: str = "max_tokens"
    json_schema: bool = False

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"


class StreamReader(Protocol):
    """Puts one streamed answer together."""

    finished: bool

    def feed(self, data: str) -> str:
        """Take in one event; returns the text it adds."""
        ...

    def reply(self) -> Reply:
        """The whole answer. Raises AttemptFailed(TRUNCATED) when the stream ended before the answer did."""
        ...


class Wire(Protocol):
    path: str

    def headers(self, key: str | None) -> dict[str, str]: ...
    def body(self, prompt: Prompt, target: Target, *, stream: bool) -> dict[str, Any]: ...
    def whole(self, answer: dict[str, Any], target: Target) -> Reply: ...
    def reader(self, target: Target) -> StreamReader: ...


def encoded(body: dict[str, Any]) -> bytes:
    # A lone surrogate in somebody's text becomes a question mark and not a failed turn.
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def with_params(body: dict[str, Any], params: dict[str, Any], wire: str) -> dict[str, Any]:
    """The body with the caller's parameters over it.

    A table named after a wire format ("openai", "anthropic") counts for that one only, so that fallbacks can differ.
    A parameter that is None takes the field out of the request, also one of ours.
    """
    own = params.get(wire)
    general = {key: value for key, value in params.items() if key not in {"openai", "anthropic"}}
    merged = {**body, **general, **(own if isinstance(own, dict) else {})}
    return {key: value for key, value in merged.items() if value is not None}


def ask(ask_id: str, name: str, raw: str) -> ToolAsk:
    parsed = arguments(raw)
    return ToolAsk(id=ask_id, name=name, arguments=parsed, raw="" if parsed is not None else raw)


def settled(stop: StopReason, asks: tuple[ToolAsk, ...]) -> StopReason:
    """A stop for tools without any tool asked for is an end: there is nothing to run."""
    return StopReason.END if stop is StopReason.TOOL_USE and not asks else stop


def truncated(missing: str, seen: int) -> AttemptFailed:
    return AttemptFailed(Fault.TRUNCATED, f"the stream ended without {missing}, after {seen} characters of text")
