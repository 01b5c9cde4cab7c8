"""OpenAI's chat completions: the answer, whole or streamed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from chordage.orchestrator.core.model import Fault, Reply, StopReason, ToolAsk, Usage
from chordage.orchestrator.gateways.models import shape
from chordage.orchestrator.gateways.models.attempt import AttemptFailed
from chordage.orchestrator.gateways.models.refusals import error_event
from chordage.orchestrator.gateways.models.wire import Target, ask, settled, truncated

_STOPS = {
    "stop": StopReason.END,
    "length": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "content_filter": StopReason.REFUSAL,
}
_KNOWN = {"id", "type", "function", "index"}


@dataclass(slots=True)
class _Answer:
    """What is known of one answer so far."""

    target: Target
    text: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    finish: str | None = None
    usage: Usage = field(default_factory=Usage)

    def take(self, message: dict[str, Any]) -> str:
        """Add a message or a delta of one; returns the text it brings."""
        said, refused = _text(message), shape.maybe(message, "refusal", str, "")
        self.text.append(said)
        self.refusal.append(refused)
        for part in shape.objects(message, "tool_calls"):
            self._call_of(part).take(part)
        return said + refused

    def reply(self) -> Reply:
        asks = tuple(call.ask() for call in self.calls)
        hung = {call.id: call.hung for call in self.calls if call.hung}
        return Reply(
            text=shape.clean("".join(self.text) or "".join(self.refusal)),
            asks=asks,
            stop=_stop(self.finish, asks, refused=any(self.refusal)),
            model=self.target.name,
            usage=self.usage,
            extra={"provider": self.target.provider, "calls": hung} if hung else {},
        )

    def _call_of(self, part: dict[str, Any]) -> _Call:
        # By index, as it should be. Some servers leave the index out or give each call the same: then the id tells,
        # and where there is none either, a name begins a new call.
        index, ask_id = part.get("index"), part.get("id")
        known = next((call for call in reversed(self.calls) if call.index == index), None)
        begins = bool(ask_id and known and ask_id != known.id) or (not ask_id and index is None and _name(part))
        if known and not begins:
            return known
        # An id made up here is unique over the history: providers of the other format insist on that.
        call = _Call(index=index, id=ask_id or f"call_{uuid4().hex}")
        self.calls.append(call)
        return call


@dataclass(slots=True)
class _Call:
    index: Any
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    hung: dict[str, Any] = field(default_factory=dict)

    def take(self, part: dict[str, Any]) -> None:
        function = shape.maybe(part, "function", dict, {})
        self.name = self.name or _name(part)
        given = function.get("arguments")
        self.arguments.append(given if isinstance(given, str) else json.dumps(given) if given is not None else "")
        self.hung |= {key: value for key, value in part.items() if key not in _KNOWN}

    def ask(self) -> ToolAsk:
        if not self.name:
            raise shape.malformed("a tool call in the answer has no name")
        return ask(self.id, self.name, "".join(self.arguments))


def whole(answer: dict[str, Any], target: Target) -> Reply:
    if answer.get("error"):
        raise error_event(answer["error"])
    choices = shape.objects(answer, "choices")
    if not choices:
        raise shape.malformed("the answer has no choices")
    found = _Answer(target, finish=_finish(choices[0]), usage=_usage(answer))
    message = shape.need(choices[0], "message", dict)
    calls = [{**call, "index": index} for index, call in enumerate(shape.objects(message, "tool_calls"))]
    found.take({**message, "tool_calls": calls})
    return found.reply()


class Reader:
    def __init__(self, target: Target) -> None:
        self._answer = _Answer(target)
        self.finished = False

    def feed(self, data: str) -> str:
        if data.strip() == "[DONE]":
            self.finished = True
            return ""
        chunk = shape.parsed(data)
        if chunk.get("error"):
            raise error_event(chunk["error"])
        if chunk.get("usage"):
            self._answer.usage = _usage(chunk)
        return "".join(self._feed_choice(choice) for choice in shape.objects(chunk, "choices"))

    def reply(self) -> Reply:
        if self._answer.finish is None:
            raise truncated("a finish_reason", sum(map(len, self._answer.text)))
        return self._answer.reply()

    def _feed_choice(self, choice: dict[str, Any]) -> str:
        self._answer.finish = _finish(choice) or self._answer.finish
        return self._answer.take(shape.maybe(choice, "delta", dict, {}))


def _finish(choice: dict[str, Any]) -> str | None:
    finish = shape.maybe(choice, "finish_reason", str, "")
    if finish == "error":
        raise AttemptFailed(Fault.SERVER, "the answer ended with finish_reason 'error'")
    return finish or None


def _stop(finish: str | None, asks: tuple[ToolAsk, ...], *, refused: bool) -> StopReason:
    stop = _STOPS.get(finish or "", StopReason.UNKNOWN)
    if refused and stop is StopReason.END:
        return StopReason.REFUSAL
    # A forced tool_choice ends with "stop", and some servers end every answer so.
    return StopReason.TOOL_USE if asks and stop is StopReason.END else settled(stop, asks)


def _name(part: dict[str, Any]) -> str:
    return shape.maybe(shape.maybe(part, "function", dict, {}), "name", str, "")


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, list):
        return shape.maybe(message, "content", str, "")
    parts = [part for part in shape.objects(message, "content") if part.get("type") == "text"]
    return "".join(shape.maybe(part, "text", str, "") for part in parts)


def _usage(answer: dict[str, Any]) -> Usage:
    said = shape.maybe(answer, "usage", dict, {})
    details = said.get("prompt_tokens_details")
    return Usage(
        input_tokens=shape.count(said, "prompt_tokens"),
        output_tokens=shape.count(said, "completion_tokens"),
        cached_tokens=shape.count(details, "cached_tokens") if isinstance(details, dict) else 0,
    )
