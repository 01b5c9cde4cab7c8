"""Anthropic's Messages format: the answer, whole or streamed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from chordage.orchestrator.core.model import Reply, StopReason, ToolAsk, Usage
from chordage.orchestrator.gateways.models import shape
from chordage.orchestrator.gateways.models.refusals import error_event
from chordage.orchestrator.gateways.models.wire import Target, ask, settled, truncated

_STOPS = {
    "end_turn": StopReason.END,
    "stop_sequence": StopReason.END,
    "tool_use": StopReason.TOOL_USE,
    "pause_turn": StopReason.PAUSE_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "refusal": StopReason.REFUSAL,
}
# Deltas that add to a field of the block, by the field they come in and the field they add to.
_GROWING = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


@dataclass(slots=True)
class _Block:
    """One content block. `raw` is the JSON of a tool's input as far as it has come, None where none was streamed."""

    start: dict[str, Any]
    grown: dict[str, list[str]] = field(default_factory=dict)
    citations: list[Any] = field(default_factory=list)
    raw: list[str] | None = None

    def take(self, delta: dict[str, Any]) -> str:
        kind = delta.get("type")
        if kind == "input_json_delta":
            self.raw = [*(self.raw or []), shape.need(delta, "partial_json", str)]
        elif kind == "citations_delta":
            self.citations.append(delta.get("citation"))
        elif kind in _GROWING:
            self.grown.setdefault(_GROWING[kind], []).append(shape.need(delta, _GROWING[kind], str))
        return shape.maybe(delta, "text", str, "") if kind == "text_delta" else ""

    def finished(self) -> dict[str, Any]:
        """The block as it would have come unstreamed, fit to be sent back."""
        block = {**self.start, **{key: self.start.get(key, "") + "".join(parts) for key, parts in self.grown.items()}}
        if self.citations:
            block["citations"] = self.citations
        if "input" in block:
            block["input"] = shape.arguments(self.json()) or {}
        return block

    def json(self) -> str:
        given = self.start.get("input")
        return "".join(self.raw) if self.raw is not None else given if isinstance(given, str) else json.dumps(given)

    def ask(self) -> ToolAsk:
        return ask(shape.need(self.start, "id", str), shape.need(self.start, "name", str), self.json())


def whole(answer: dict[str, Any], target: Target) -> Reply:
    if answer.get("error"):
        raise error_event(answer["error"])
    shape.need(answer, "content", list)
    blocks = [_Block(block) for block in shape.objects(answer, "content")]
    stop = shape.need(answer, "stop_reason", str)
    return _reply(target, blocks, stop, shape.maybe(answer, "usage", dict, {}), _container(answer))


class Reader:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._blocks: dict[int, _Block] = {}
        self._stop = ""
        self._usage: dict[str, Any] = {}
        self._container: str | None = None
        self.finished = False

    def feed(self, data: str) -> str:
        event = shape.parsed(data)
        match event.get("type"):
            case "error":
                raise error_event(event.get("error"))
            case "message_start":
                message = shape.need(event, "message", dict)
                self._count(message)
                self._container = _container(message)
            case "content_block_start":
                block = _Block(shape.need(event, "content_block", dict))
                self._blocks[shape.need(event, "index", int)] = block
                return shape.maybe(block.start, "text", str, "")
            case "content_block_delta":
                return self._block(event).take(shape.need(event, "delta", dict))
            case "message_delta":
                delta = shape.need(event, "delta", dict)
                self._stop = shape.maybe(delta, "stop_reason", str, self._stop)
                self._container = _container(delta) or self._container
                self._count(event)
            case "message_stop":
                self.finished = True
        return ""

    def reply(self) -> Reply:
        blocks = [block for _, block in sorted(self._blocks.items())]
        if not self.finished:
            raise truncated("a message_stop", sum(len(part) for b in blocks for part in b.grown.get("text", [])))
        return _reply(self._target, blocks, self._stop, self._usage, self._container)

    def _block(self, event: dict[str, Any]) -> _Block:
        index = shape.need(event, "index", int)
        if index not in self._blocks:
            raise shape.malformed(f"the stream adds to content block {index}, which it never began")
        return self._blocks[index]

    def _count(self, holder: dict[str, Any]) -> None:
        # The last word counts: later events repeat the numbers of earlier ones, brought up to date.
        said = shape.maybe(holder, "usage", dict, {})
        self._usage |= {key: value for key, value in said.items() if value is not None}


def _reply(
    target: Target, blocks: list[_Block], stop_reason: str, usage: dict[str, Any], container: str | None
) -> Reply:
    asks = tuple(block.ask() for block in blocks if block.start.get("type") == "tool_use")
    content = [block.finished() for block in blocks]
    stop = settled(_STOPS.get(stop_reason, StopReason.UNKNOWN), asks)
    return Reply(
        text=shape.clean("".join(block["text"] for block in content if _is_text(block))),
        asks=asks,
        stop=stop,
        model=target.name,
        usage=_usage(usage),
        extra=_extra(target, content, container) if container or _must_come_back(stop, content) else {},
    )


def _extra(target: Target, content: list[dict[str, Any]], container: str | None) -> dict[str, Any]:
    return {"provider": target.provider, "content": content, **({"container": container} if container else {})}


def _container(holder: dict[str, Any]) -> str | None:
    found = holder.get("container")
    return shape.maybe(found, "id", str, None) if isinstance(found, dict) else None


def _must_come_back(stop: StopReason, content: list[dict[str, Any]]) -> bool:
    """Whether the blocks say more than text and calls do: a paused turn, signed thoughts, tools the provider ran."""
    plain = {"text", "tool_use"}
    return stop is StopReason.PAUSE_TURN or any(block.get("type") not in plain for block in content)


def _is_text(block: dict[str, Any]) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _usage(said: dict[str, Any]) -> Usage:
    # This provider leaves cached tokens out of input_tokens; ours are all that went in, as elsewhere.
    read, written = shape.count(said, "cache_read_input_tokens"), shape.count(said, "cache_creation_input_tokens")
    return Usage(
        input_tokens=shape.count(said, "input_tokens") + read + written,
        output_tokens=shape.count(said, "output_tokens"),
        cached_tokens=read,
        cache_write_tokens=written,
    )
