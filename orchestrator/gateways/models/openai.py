"""OpenAI's chat completions, the format that most other providers and local servers speak too: request and answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import uuid4

from chordage.orchestrator.core.model import (
    AssistantSays,
    Fault,
    Prompt,
    Reply,
    Said,
    StopReason,
    ToolAsk,
    ToolOffer,
    ToolSays,
    Usage,
    UserSays,
)
from chordage.orchestrator.gateways.models import wire
from chordage.orchestrator.gateways.models.refusals import error_event
from chordage.orchestrator.gateways.models.wire import Target, maybe, need

_STOPS = {
    "stop": StopReason.END,
    "length": StopReason.MAX_TOKENS,
    "tool_calls": StopReason.TOOL_USE,
    "function_call": StopReason.TOOL_USE,
    "content_filter": StopReason.REFUSAL,
}
_KNOWN = {"id", "type", "function", "index"}
# What a strict schema may hold and what its readers understand; the names of properties and definitions are free.
_WORDS = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
    "title", "description",
}  # fmt: skip
_Json: TypeAlias = dict[str, Any]


class OpenAIWire:
    path = "/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, prompt: Prompt, target: Target, *, stream: bool) -> _Json:
        body: _Json = {"model": target.model, "messages": messages(prompt, target.provider)}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if target.json_schema and prompt.output is not None:
            body |= response_format(prompt.output)
        body = wire.with_params(body, prompt.params, "openai")
        # Tools among the parameters are those that the provider runs itself; ours go in front of them.
        tools = [*(_tool(offer) for offer in prompt.offers), *body.pop("tools", [])]
        return _renamed({**body, **({"tools": tools} if tools else {})}, target)

    def whole(self, answer: _Json, target: Target) -> Reply:
        if answer.get("error"):
            raise error_event(answer["error"])
        choices = wire.objects(answer, "choices")
        if not choices:
            raise wire.malformed("the answer has no choices")
        partial = _Answer(target, finish=_finish(choices[0]), usage=_usage(answer))
        message = need(choices[0], "message", dict)
        calls = [{**call, "index": index} for index, call in enumerate(wire.objects(message, "tool_calls"))]
        partial.add({**message, "tool_calls": calls})
        return partial.reply()

    def reader(self, target: Target) -> OpenAIStream:
        return OpenAIStream(target)


# the request


def messages(prompt: Prompt, provider: str) -> list[_Json]:
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, *(_message(said, provider) for said in prompt.said)]


def _message(said: Said, provider: str) -> _Json:
    match said:
        case UserSays(text=text):
            return {"role": "user", "content": text}
        case ToolSays():
            return {"role": "tool", "tool_call_id": said.ask_id, "content": said.content}
        case AssistantSays(text=text, asks=()):
            return {"role": "assistant", "content": text}
        case AssistantSays():
            # What a provider attached to its own calls (signatures of thought) goes back to it and to no other.
            attached = said.extra.get("calls", {}) if said.extra.get("provider") == provider else {}
            calls = [{**attached.get(ask.id, {}), **_tool_call(ask)} for ask in said.asks]
            return {"role": "assistant", "content": said.text or None, "tool_calls": calls}


def _tool_call(ask: ToolAsk) -> _Json:
    # Arguments that were no JSON go back as an empty object, for many servers parse them again. The result of the call
    # tells the model what was wrong.
    arguments = json.dumps(ask.arguments or {}, ensure_ascii=False)
    return {"id": ask.id, "type": "function", "function": {"name": ask.name, "arguments": arguments}}


def _tool(offer: ToolOffer) -> _Json:
    function = {"name": offer.name, "description": offer.description, "parameters": offer.schema}
    return {"type": "function", "function": function}


def _renamed(body: _Json, target: Target) -> _Json:
    """Our names for what the formats name differently: max_tokens, and tool_choice in one word."""
    if target.max_tokens_key != "max_tokens" and "max_tokens" in body:
        body.setdefault(target.max_tokens_key, body.pop("max_tokens"))
    if "tools" not in body:
        body.pop("tool_choice", None)
        body.pop("parallel_tool_calls", None)
    choice = body.get("tool_choice")
    if isinstance(choice, str) and choice not in {"auto", "none", "required"}:
        body["tool_choice"] = {"type": "function", "function": {"name": choice}}
    return body


def response_format(schema: _Json) -> _Json:
    """The demand for output that fits a schema, as a field of the request.

    The provider holds the model to a schema (`strict`) only if it is written with a few words, and refuses the request
    if others are in a strict one. Only what is certain is sent as strict; the model reads the rest, as with providers
    that take no schema at all. A schema whose root is no object is not taken at all.
    """
    if schema.get("type") != "object":
        return {}
    strict = "anyOf" not in schema and "$ref" not in schema and _is_strict(schema)
    form = {"name": "output", "schema": schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def _is_strict(schema: Any) -> bool:
    if not isinstance(schema, dict) or schema.keys() - _WORDS:
        return False
    if "$ref" in schema:
        return schema.keys() == {"$ref"}
    if not {"type", "enum", "const", "anyOf"} & schema.keys():
        return False
    tables = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner = [*tables, *schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
    return _is_closed(schema) and all(map(_is_strict, inner))


def _is_closed(schema: _Json) -> bool:
    """An object names all it may hold, and all of it is required. A list says of what."""
    if schema.get("type") == "object":
        named = schema.get("properties", {})
        return schema.get("additionalProperties") is False and sorted(schema.get("required", [])) == sorted(named)
    return isinstance(schema.get("type", ""), str) and (schema.get("type") != "array" or "items" in schema)


# the answer


@dataclass(slots=True)
class _Answer:
    """What is known of one answer so far."""

    target: Target
    text: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    finish: str | None = None
    usage: Usage = field(default_factory=Usage)
    reasoning: wire.Reasoning = field(default_factory=wire.Reasoning)

    def add(self, message: _Json) -> str:
        """Add a message or a delta of one; returns the text it brings."""
        self.reasoning.add(_reasoning(message))
        text, refusal = _text(message), maybe(message, "refusal", str, "")
        if text or refusal:
            self.reasoning.end()
        self.text.append(text)
        self.refusal.append(refusal)
        for part in wire.objects(message, "tool_calls"):
            self._call_of(part).add(part)
        return text + refusal

    def reply(self) -> Reply:
        asks = tuple(call.ask() for call in self.calls)
        attached = {call.id: call.attached for call in self.calls if call.attached}
        return Reply(
            text=wire.clean("".join(self.text) or "".join(self.refusal)),
            asks=asks,
            stop=_stop(self.finish, asks, refused=any(self.refusal)),
            model=self.target.name,
            usage=self.usage,
            extra={"provider": self.target.provider, "calls": attached} if attached else {},
            reasoning=self.reasoning.whole(),
        )

    def _call_of(self, part: _Json) -> _Call:
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
    attached: _Json = field(default_factory=dict)

    def add(self, part: _Json) -> None:
        self.name = self.name or _name(part)
        piece = maybe(part, "function", dict, {}).get("arguments")
        self.arguments.append(piece if isinstance(piece, str) else json.dumps(piece) if piece is not None else "")
        self.attached |= {key: value for key, value in part.items() if key not in _KNOWN}

    def ask(self) -> ToolAsk:
        if not self.name:
            raise wire.malformed("a tool call in the answer has no name")
        return wire.ask(self.id, self.name, "".join(self.arguments))


class OpenAIStream:
    def __init__(self, target: Target) -> None:
        self._answer = _Answer(target)
        self.reasoning = self._answer.reasoning
        self.finished = False

    def feed(self, data: str) -> str:
        if data.strip() == "[DONE]":
            self.finished = True
            return ""
        chunk = wire.parse(data)
        if chunk.get("error"):
            raise error_event(chunk["error"])
        if chunk.get("usage"):
            self._answer.usage = _usage(chunk)
        text = ""
        for choice in wire.objects(chunk, "choices"):
            self._answer.finish = _finish(choice) or self._answer.finish
            text += self._answer.add(maybe(choice, "delta", dict, {}))
        return text

    def reply(self) -> Reply:
        if self._answer.finish is None:
            raise wire.truncated("a finish_reason", sum(map(len, self._answer.text)))
        return self._answer.reply()


def _finish(choice: _Json) -> str | None:
    finish = maybe(choice, "finish_reason", str, "")
    if finish == "error":
        raise wire.AttemptFailed(Fault.SERVER, "the answer ended with finish_reason 'error'")
    return finish or None


def _stop(finish: str | None, asks: tuple[ToolAsk, ...], *, refused: bool) -> StopReason:
    stop = _STOPS.get(finish or "", StopReason.UNKNOWN)
    if refused and stop is StopReason.END:
        return StopReason.REFUSAL
    # A forced tool_choice ends with "stop", and some servers end every answer so.
    return StopReason.TOOL_USE if asks and stop is StopReason.END else wire.end_without_asks(stop, asks)


def _name(part: _Json) -> str:
    return maybe(maybe(part, "function", dict, {}), "name", str, "")


def _text(message: _Json) -> str:
    if not isinstance(message.get("content"), list):
        return maybe(message, "content", str, "")
    parts = [part for part in wire.objects(message, "content") if part.get("type") == "text"]
    return "".join(maybe(part, "text", str, "") for part in parts)


def _reasoning(message: _Json) -> object:
    """No field of OpenAI's own: servers of others have one or the other name for it, and some send both, alike."""
    return message.get("reasoning_content") or message.get("reasoning")


def _usage(answer: _Json) -> Usage:
    usage = maybe(answer, "usage", dict, {})
    details = usage.get("prompt_tokens_details")
    return Usage(
        input_tokens=wire.count(usage, "prompt_tokens"),
        output_tokens=wire.count(usage, "completion_tokens"),
        cached_tokens=wire.count(details, "cached_tokens") if isinstance(details, dict) else 0,
    )
