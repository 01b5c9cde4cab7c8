"""Scripted replies in Anthropic's Messages format, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from chordage.orchestrator.core.model import Fault, StopReason, Usage
from chordage.orchestrator.gateways.models.scripted import Line, pieces
from chordage.orchestrator.gateways.models.scripted_wire import SENTENCES, Json

_STOPS = {
    StopReason.END: "end_turn",
    StopReason.TOOL_USE: "tool_use",
    StopReason.MAX_TOKENS: "max_tokens",
    StopReason.REFUSAL: "refusal",
    StopReason.PAUSE_TURN: "pause_turn",
    StopReason.UNKNOWN: "something_new",
}
_ERRORS = {
    Fault.RATE_LIMIT: "rate_limit_error",
    Fault.QUOTA: "billing_error",
    Fault.AUTH: "authentication_error",
    Fault.CONTEXT: "invalid_request_error",
    Fault.REJECTED: "invalid_request_error",
    Fault.OVERLOADED: "overloaded_error",
    Fault.TIMEOUT: "timeout_error",
}


class AnthropicFormat:
    last = b""

    def whole(self, line: Line, model: str) -> Json:
        text = [{"type": "text", "text": line.text}] if line.text else []
        uses = [{**_use(line, number), "input": _input(raw)} for number, raw in enumerate(line.raw)]
        return {**_message(model, [*text, *uses], line.usage), "stop_reason": _STOPS[line.stop]}

    def events(self, line: Line, model: str, chunk: int) -> Iterator[Json]:
        start = _message(model, [], replace(line.usage, output_tokens=0))
        yield {"type": "message_start", "message": {**start, "stop_reason": None}}
        blocks = [({"type": "text", "text": ""}, "text_delta", "text", pieces(line.text, chunk))] if line.text else []
        for number, raw in enumerate(line.raw):
            use = {**_use(line, number), "input": {}}
            blocks.append((use, "input_json_delta", "partial_json", pieces(raw, chunk)))
        for index, (block, kind, key, parts) in enumerate(blocks):
            yield {"type": "content_block_start", "index": index, "content_block": block}
            yield {"type": "ping"}
            for part in parts:
                yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, key: part}}
            yield {"type": "content_block_stop", "index": index}
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": _STOPS[line.stop], "stop_sequence": None},
            "usage": {"output_tokens": line.usage.output_tokens},
        }
        yield {"type": "message_stop"}

    def encoded(self, event: Json) -> bytes:
        return f"event: {event.get('type', 'error')}\ndata: {json.dumps(event)}\n\n".encode()

    def error(self, fault: Fault) -> Json:
        kind = _ERRORS.get(fault, "api_error")
        return {"type": "error", "error": {"type": kind, "message": SENTENCES.get(fault, kind)}}

    def without_choices(self, line: Line, model: str) -> Json:
        return {**_message(model, [], line.usage), "stop_reason": "end_turn"}


def _message(model: str, content: list[Json], usage: Usage) -> Json:
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
        },
    }


def _use(line: Line, number: int) -> Json:
    return {"type": "tool_use", "id": line.asks[number].id, "name": line.asks[number].name}


def _input(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw
