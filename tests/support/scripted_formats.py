"""The wire formats from the provider's side, for the scripted server: requests back to prompts, replies to answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeAlias

from chordage.orchestrator.core.model import (
    AssistantSays,
    Fault,
    Prompt,
    Said,
    StopReason,
    ToolAsk,
    ToolSays,
    Usage,
    UserSays,
)
from chordage.orchestrator.gateways.models.script import FilledReply, pieces

Json: TypeAlias = dict[str, Any]

SENTENCES = {
    Fault.CONTEXT: "prompt is too long: it does not fit the context window",
    Fault.QUOTA: "Your credit balance is too low",
    Fault.RATE_LIMIT: "too many requests",
}


class ServedFormat(Protocol):
    last: bytes  # what ends a stream

    def prompt(self, body: Json) -> Prompt: ...
    def whole(self, reply: FilledReply, model: str) -> Json: ...
    def events(self, reply: FilledReply, model: str, chunk: int) -> Iterator[Json]: ...
    def encoded(self, event: Json) -> bytes: ...
    def error(self, fault: Fault) -> Json: ...
    def without_choices(self, reply: FilledReply, model: str) -> Json: ...


def _text(content: Any) -> str:
    return "\n".join(block["text"] for block in _blocks(content) if block["type"] == "text")


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


class OpenAIFormat:
    last = b"data: [DONE]\n\n"
    stops: ClassVar = {
        StopReason.END: "stop",
        StopReason.TOOL_USE: "tool_calls",
        StopReason.MAX_TOKENS: "length",
        StopReason.REFUSAL: "content_filter",
        StopReason.PAUSE_TURN: "pause_turn",
        StopReason.UNKNOWN: "something_new",
    }
    errors: ClassVar = {
        Fault.RATE_LIMIT: "rate_limit_exceeded",
        Fault.QUOTA: "insufficient_quota",
        Fault.AUTH: "invalid_api_key",
        Fault.CONTEXT: "context_length_exceeded",
        Fault.REJECTED: "invalid_request_error",
        Fault.OVERLOADED: "overloaded_error",
        Fault.TIMEOUT: "timeout_error",
    }

    def prompt(self, body: Json) -> Prompt:
        system = "\n".join(_text(message["content"]) for message in body["messages"] if message["role"] == "system")
        said = tuple(self._said(message) for message in body["messages"] if message["role"] != "system")
        return Prompt(system=system, said=said)

    @staticmethod
    def _said(message: Json) -> Said:
        text = _text(message.get("content"))
        match message["role"]:
            case "tool":
                return ToolSays(ask_id=message["tool_call_id"], name="", content=text)
            case "assistant":
                calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or []]
                asks = (ToolAsk(id=i, name=made["name"], arguments=json.loads(made["arguments"])) for i, made in calls)
                return AssistantSays(text=text, asks=tuple(asks))
            case _:
                return UserSays(text=text)

    def whole(self, reply: FilledReply, model: str) -> Json:
        calls = [
            {"id": ask.id, "function": {"name": ask.name, "arguments": raw}, "type": "function"}
            for ask, raw in zip(reply.asks, reply.raw, strict=True)
        ]
        message = {"role": "assistant", "content": reply.text or None, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": self.stops[reply.stop]}
        return {**_completion(model, "chat.completion"), "choices": [choice], "usage": _openai_usage(reply.usage)}

    def events(self, reply: FilledReply, model: str, chunk: int) -> Iterator[Json]:
        yield _chunk(model, {"role": "assistant", "content": ""})
        for piece in pieces(reply.text, chunk):
            yield _chunk(model, {"content": piece})
        # The calls in pieces, mixed as a provider may mix them: all beginnings, all first halves, all second halves.
        for index, ask in enumerate(reply.asks):
            function = {"name": ask.name, "arguments": ""}
            yield _chunk(
                model, {"tool_calls": [{"index": index, "id": ask.id, "type": "function", "function": function}]}
            )
        for half in (0, 1):
            for index, raw in enumerate(reply.raw):
                part = (raw[: len(raw) // 2], raw[len(raw) // 2 :])[half]
                yield _chunk(model, {"tool_calls": [{"index": index, "function": {"arguments": part}}]})
        yield _chunk(model, {}, self.stops[reply.stop])
        yield {**_completion(model, "chat.completion.chunk"), "choices": [], "usage": _openai_usage(reply.usage)}

    def encoded(self, event: Json) -> bytes:
        return f"data: {json.dumps(event)}\n\n".encode()

    def error(self, fault: Fault) -> Json:
        kind = self.errors.get(fault, "server_error")
        return {"error": {"message": SENTENCES.get(fault, kind), "type": kind, "code": kind}}

    def without_choices(self, reply: FilledReply, model: str) -> Json:
        return {**self.whole(reply, model), "choices": []}


def _completion(model: str, kind: str) -> Json:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 1, "model": model}


def _chunk(model: str, delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**_completion(model, "chat.completion.chunk"), "choices": [choice]}


def _openai_usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class AnthropicFormat:
    last = b""
    stops: ClassVar = {
        StopReason.END: "end_turn",
        StopReason.TOOL_USE: "tool_use",
        StopReason.MAX_TOKENS: "max_tokens",
        StopReason.REFUSAL: "refusal",
        StopReason.PAUSE_TURN: "pause_turn",
        StopReason.UNKNOWN: "something_new",
    }
    errors: ClassVar = {
        Fault.RATE_LIMIT: "rate_limit_error",
        Fault.QUOTA: "billing_error",
        Fault.AUTH: "authentication_error",
        Fault.CONTEXT: "invalid_request_error",
        Fault.REJECTED: "invalid_request_error",
        Fault.OVERLOADED: "overloaded_error",
        Fault.TIMEOUT: "timeout_error",
    }

    def prompt(self, body: Json) -> Prompt:
        said = [said for message in body["messages"] for said in self._said(message)]
        return Prompt(system=_text(body.get("system")), said=tuple(said))

    @staticmethod
    def _said(message: Json) -> Iterator[Said]:
        """Each block of a user message is a message of its own: the wire format has put neighbours together."""
        blocks = _blocks(message.get("content"))
        if message["role"] == "assistant":
            uses = (block for block in blocks if block["type"] == "tool_use")
            asks = (ToolAsk(id=use["id"], name=use["name"], arguments=use["input"]) for use in uses)
            yield AssistantSays(text=_text(blocks), asks=tuple(asks))
            return
        for block in blocks:
            if block["type"] == "tool_result":
                yield ToolSays(ask_id=block["tool_use_id"], name="", content=_text(block.get("content")))
            else:
                yield UserSays(text=block["text"])

    def whole(self, reply: FilledReply, model: str) -> Json:
        text = [{"type": "text", "text": reply.text}] if reply.text else []
        uses = [{**_use(ask), "input": _input(raw)} for ask, raw in zip(reply.asks, reply.raw, strict=True)]
        return {**_anthropic_message(model, [*text, *uses], reply.usage), "stop_reason": self.stops[reply.stop]}

    def events(self, reply: FilledReply, model: str, chunk: int) -> Iterator[Json]:
        start = _anthropic_message(model, [], replace(reply.usage, output_tokens=0))
        yield {"type": "message_start", "message": {**start, "stop_reason": None}}
        text: Json = {"type": "text", "text": ""}
        blocks = [(text, "text_delta", "text", pieces(reply.text, chunk))] if reply.text else []
        for ask, raw in zip(reply.asks, reply.raw, strict=True):
            blocks.append(({**_use(ask), "input": {}}, "input_json_delta", "partial_json", pieces(raw, chunk)))
        for index, (block, kind, key, parts) in enumerate(blocks):
            yield {"type": "content_block_start", "index": index, "content_block": block}
            yield {"type": "ping"}
            for part in parts:
                yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, key: part}}
            yield {"type": "content_block_stop", "index": index}
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": self.stops[reply.stop], "stop_sequence": None},
            "usage": {"output_tokens": reply.usage.output_tokens},
        }
        yield {"type": "message_stop"}

    def encoded(self, event: Json) -> bytes:
        return f"event: {event.get('type', 'error')}\ndata: {json.dumps(event)}\n\n".encode()

    def error(self, fault: Fault) -> Json:
        kind = self.errors.get(fault, "api_error")
        return {"type": "error", "error": {"type": kind, "message": SENTENCES.get(fault, kind)}}

    def without_choices(self, reply: FilledReply, model: str) -> Json:
        return {**_anthropic_message(model, [], reply.usage), "stop_reason": "end_turn"}


def _anthropic_message(model: str, content: list[Json], usage: Usage) -> Json:
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


def _use(ask: ToolAsk) -> Json:
    return {"type": "tool_use", "id": ask.id, "name": ask.name}


def _input(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw
