"""Scripted replies as OpenAI's chat completions, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator

from chordage.orchestrator.core.model import Fault, StopReason, Usage
from chordage.orchestrator.gateways.models.scripted import Line, pieces
from chordage.orchestrator.gateways.models.scripted_wire import SENTENCES, Json

_STOPS = {
    StopReason.END: "stop",
    StopReason.TOOL_USE: "tool_calls",
    StopReason.MAX_TOKENS: "length",
    StopReason.REFUSAL: "content_filter",
    StopReason.PAUSE_TURN: "pause_turn",
    StopReason.UNKNOWN: "something_new",
}
_ERRORS = {
    Fault.RATE_LIMIT: "rate_limit_exceeded",
    Fault.QUOTA: "insufficient_quota",
    Fault.AUTH: "invalid_api_key",
    Fault.CONTEXT: "context_length_exceeded",
    Fault.REJECTED: "invalid_request_error",
    Fault.OVERLOADED: "overloaded_error",
    Fault.TIMEOUT: "timeout_error",
}


class OpenAIFormat:
    last = b"data: [DONE]\n\n"

    def whole(self, line: Line, model: str) -> Json:
        calls = [{**_call(line, number), "type": "function"} for number in range(len(line.asks))]
        message = {"role": "assistant", "content": line.text or None, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": _STOPS[line.stop]}
        return {**_completion(model, "chat.completion"), "choices": [choice], "usage": _usage(line.usage)}

    def events(self, line: Line, model: str, chunk: int) -> Iterator[Json]:
        yield _chunk(model, {"role": "assistant", "content": ""})
        for piece in pieces(line.text, chunk):
            yield _chunk(model, {"content": piece})
        for delta in _interleaved(line):
            yield _chunk(model, {"tool_calls": [delta]})
        yield _chunk(model, {}, _STOPS[line.stop])
        yield {
            **_completion(model, "chat.completion.chunk"),
            "choices": [],
            "usage": _usage(line.usage),
        }

    def encoded(self, event: Json) -> bytes:
        return f"data: {json.dumps(event)}\n\n".encode()

    def error(self, fault: Fault) -> Json:
        kind = _ERRORS.get(fault, "server_error")
        return {"error": {"message": SENTENCES.get(fault, kind), "type": kind, "code": kind}}

    def without_choices(self, line: Line, model: str) -> Json:
        return {**self.whole(line, model), "choices": []}


def _completion(model: str, kind: str) -> Json:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 1, "model": model}


def _chunk(model: str, delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**_completion(model, "chat.completion.chunk"), "choices": [choice]}


def _call(line: Line, number: int) -> Json:
    return {"id": line.asks[number].id, "function": {"name": line.asks[number].name, "arguments": line.raw[number]}}


def _interleaved(line: Line) -> Iterator[Json]:
    """The calls of one answer in pieces, mixed as a provider may mix them: all beginnings, all middles, all ends."""
    for index, ask in enumerate(line.asks):
        function = {"name": ask.name, "arguments": ""}
        yield {"index": index, "id": ask.id, "type": "function", "function": function}
    halves = [(raw[: len(raw) // 2], raw[len(raw) // 2 :]) for raw in line.raw]
    for half in (0, 1):
        for index, parts in enumerate(halves):
            yield {"index": index, "function": {"arguments": parts[half]}}


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
