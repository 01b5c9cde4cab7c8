"""Anthropic's Messages format: the request, and the answer, whole or streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any, TypeAlias

from chordage.orchestrator.core.model import (
    AssistantSays,
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
from chordage.orchestrator.core.transcript import AWAITING, NOT_STARTED
from chordage.orchestrator.gateways.models import wire
from chordage.orchestrator.gateways.models.refusals import error_event
from chordage.orchestrator.gateways.models.wire import Target, maybe, need

VERSION = "2023-06-01"
MAX_TOKENS = 8192  # the format insists on a number
MARK = {"cache_control": {"type": "ephemeral"}}
_MARKED_MESSAGES = 2
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
_Json: TypeAlias = dict[str, Any]


class AnthropicWire:
    path = "/v1/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def body(self, prompt: Prompt, target: Target, *, stream: bool) -> _Json:
        body: _Json = {
            "model": target.model,
            "max_tokens": MAX_TOKENS,
            "messages": messages(prompt.said, target.provider),
            **_last_container(prompt.said, target.provider),
            **({"system": prompt.system} if prompt.system else {}),
            **({"stream": True} if stream else {}),
        }
        body = _with_tools(_renamed(wire.with_params(body, prompt.params, "anthropic")), prompt)
        return _with_marks(body, prompt) if prompt.cache else body

    def whole(self, answer: _Json, target: Target) -> Reply:
        if answer.get("error"):
            raise error_event(answer["error"])
        need(answer, "content", list)
        blocks = [_Block(block) for block in wire.objects(answer, "content")]
        stop = need(answer, "stop_reason", str)
        reasoning = wire.Reasoning()
        for block in blocks:
            _begin(block, reasoning)
        usage = maybe(answer, "usage", dict, {})
        return replace(_reply(target, blocks, stop, usage, _container(answer)), reasoning=reasoning.whole())

    def reader(self, target: Target) -> AnthropicStream:
        return AnthropicStream(target)


# the request


def _renamed(body: _Json) -> _Json:
    """The names of the other format, so that one set of parameters serves a model and its fallbacks."""
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    if "stop" in body:
        stop = body.pop("stop")
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    match body.get("tool_choice"):
        case "required":
            body["tool_choice"] = {"type": "any"}
        case "auto" | "none" as kind:
            body["tool_choice"] = {"type": kind}
        case str(name):
            body["tool_choice"] = {"type": "tool", "name": name}
    return body


def _with_tools(body: _Json, prompt: Prompt) -> _Json:
    # Tools among the parameters are those that the provider runs itself; ours go in front of them.
    tools = [*(_tool(offer) for offer in prompt.offers), *body.pop("tools", [])]
    if tools:
        return {**body, "tools": tools}
    body.pop("tool_choice", None)
    used = sorted({ask.name for said in prompt.said if isinstance(said, AssistantSays) for ask in said.asks})
    if not used:
        return body
    # A history with tool calls is refused unless tools are declared: so they are, and none may be called.
    declared = [ToolOffer(name=name, description="Not offered now.", schema={"type": "object"}) for name in used]
    return {**body, "tools": [_tool(offer) for offer in declared], "tool_choice": {"type": "none"}}


def _tool(offer: ToolOffer) -> _Json:
    return {"name": offer.name, "description": offer.description, "input_schema": offer.schema}


def messages(history: Iterable[Said], provider: str) -> list[_Json]:
    """The history under the rules of the format.

    User and assistant take turns, the user begins; neighbours of one role become one message. The results of all calls
    of an assistant message come first in the user message behind it. Ids of calls are unique over the whole history and
    made of letters, digits, _ and -, which ids of other providers need not be. Empty text is refused.
    """
    ids = _CallIds()
    parts = [
        ("assistant" if isinstance(said, AssistantSays) else "user", _content(said, provider, ids)) for said in history
    ]
    turns = []
    for role, group in groupby([part for part in parts if part[1]], key=lambda part: part[0]):
        blocks = [block for _, content in group for block in content]
        turns.append({"role": role, "content": sorted(blocks, key=lambda block: block["type"] != "tool_result")})
    if turns and turns[0]["role"] == "user":
        return turns
    return [{"role": "user", "content": _text("(The conversation goes on.)")}, *turns]


class _CallIds:
    """The ids of calls as they go over the wire; a function of the history alone, or no prompt cache would ever hit."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._latest: dict[str, str] = {}

    def new(self, ask_id: str) -> str:
        legal = re.sub(r"[^a-zA-Z0-9_-]", "_", ask_id) or "call"
        number, chosen = 1, legal
        while chosen in self._used:
            number, chosen = number + 1, f"{legal}_{number + 1}"
        self._used.add(chosen)
        self._latest[ask_id] = chosen
        return chosen

    def of_result(self, ask_id: str) -> str:
        return self._latest.get(ask_id) or self.new(ask_id)


def _content(said: Said, provider: str, ids: _CallIds) -> list[_Json]:
    match said:
        case UserSays(text=text):
            return _text(text)
        case ToolSays():
            result = {"type": "tool_result", "tool_use_id": ids.of_result(said.ask_id), "content": said.content}
            return [{**result, **({"is_error": True} if said.is_error else {})}]
        case AssistantSays():
            blocks = _original(said, provider) or [*_text(said.text), *map(_tool_use, said.asks)]
            return [{**block, "id": ids.new(block["id"])} if block["type"] == "tool_use" else block for block in blocks]


def _tool_use(ask: ToolAsk) -> _Json:
    return {"type": "tool_use", "id": ask.id, "name": ask.name, "input": ask.arguments or {}}


def _original(said: AssistantSays, provider: str) -> list[_Json]:
    """The very blocks the provider sent, where it wants them back and they still say what the history says."""
    blocks: list[_Json] = said.extra.get("content", []) if said.extra.get("provider") == provider else []
    used = [block["id"] for block in blocks if block["type"] == "tool_use"]
    return blocks if used == [ask.id for ask in said.asks] else []


def _text(text: str) -> list[_Json]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _last_container(history: Iterable[Said], provider: str) -> dict[str, str]:
    """The container in which the provider's own tools left their work, if they have one, as a field of the request."""
    extras = [said.extra for said in history if isinstance(said, AssistantSays)]
    ids = [extra["container"] for extra in extras if extra.get("provider") == provider and "container" in extra]
    return {"container": ids[-1]} if ids else {}


# marks for the provider's prompt cache


def _with_marks(body: _Json, prompt: Prompt) -> _Json:
    """Say which parts of the request the provider shall keep for the next one.

    A mark says that everything up to it will come again. Four are allowed, and so many are set: behind the tools,
    behind the part of the system text that stays, behind the end of the request before this one, and behind the end of
    this one. The provider looks for what it has kept at most 20 blocks before a mark, and a round may have more than
    that: hence the third one. What may still change is no such end: a call that waits for a decision has another result
    later. Nothing is added where the room's parameters bring marks of their own.
    """
    contents = [message["content"] for message in body["messages"]]
    lists = [part for part in (body.get("tools"), body.get("system"), *contents) if isinstance(part, list)]
    if "cache_control" in body or any("cache_control" in part for part in chain.from_iterable(lists)):
        return body
    marked = dict(body)
    if tools := body.get("tools"):
        marked["tools"] = _last_marked(tools)
    if isinstance(system := body.get("system"), str) and system:
        marked["system"] = _system(system, prompt)
    # A request ends with the text of a user, or with results.
    stable = next((index for index, content in enumerate(contents) if _may_change(content)), len(contents))
    ends = [index for index in range(stable) if body["messages"][index]["role"] == "user"][-_MARKED_MESSAGES:]
    marked["messages"] = [
        {**message, "content": _last_marked(message["content"])} if index in ends else message
        for index, message in enumerate(body["messages"])
    ]
    return marked


def _last_marked(blocks: list[_Json]) -> list[_Json]:
    return [*blocks[:-1], {**blocks[-1], **MARK}]


def _system(system: str, prompt: Prompt) -> list[_Json]:
    """The whole of it, unless plugins have added something that changes from request to request."""
    stays = prompt.stable if system == prompt.system else 0
    if not 0 < stays < len(system):
        return [{"type": "text", "text": system, **MARK}]
    return [{"type": "text", "text": system[:stays], **MARK}, {"type": "text", "text": system[stays:].lstrip("\n")}]


def _may_change(content: list[_Json]) -> bool:
    return any(block["type"] == "tool_result" and block["content"] in {AWAITING, NOT_STARTED} for block in content)


# the answer


@dataclass(slots=True)
class _Block:
    """One content block. `raw` is the JSON of a tool's input as far as it has come, None where none was streamed."""

    start: _Json
    grown: dict[str, list[str]] = field(default_factory=dict)
    citations: list[Any] = field(default_factory=list)
    raw: list[str] | None = None

    def add(self, delta: _Json) -> str:
        kind = delta.get("type")
        if kind == "input_json_delta":
            self.raw = [*(self.raw or []), need(delta, "partial_json", str)]
        elif kind == "citations_delta":
            self.citations.append(delta.get("citation"))
        elif kind in _GROWING:
            self.grown.setdefault(_GROWING[kind], []).append(need(delta, _GROWING[kind], str))
        return maybe(delta, "text", str, "") if kind == "text_delta" else ""

    def finished(self) -> _Json:
        """The block as it would have come unstreamed, fit to be sent back."""
        block = {**self.start, **{key: self.start.get(key, "") + "".join(parts) for key, parts in self.grown.items()}}
        if self.citations:
            block["citations"] = self.citations
        if "input" in block:
            block["input"] = wire.arguments(self.json()) or {}
        return block

    def json(self) -> str:
        whole = self.start.get("input")
        return "".join(self.raw) if self.raw is not None else whole if isinstance(whole, str) else json.dumps(whole)

    def ask(self) -> ToolAsk:
        return wire.ask(need(self.start, "id", str), need(self.start, "name", str), self.json())


class AnthropicStream:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._blocks: dict[int, _Block] = {}
        self._stop = ""
        self._usage: _Json = {}
        self._container: str | None = None
        self.reasoning = wire.Reasoning()
        self.finished = False

    def feed(self, data: str) -> str:
        event = wire.parse(data)
        match event.get("type"):
            case "error":
                raise error_event(event.get("error"))
            case "message_start":
                message = need(event, "message", dict)
                self._count(message)
                self._container = _container(message)
            case "content_block_start":
                block = _Block(need(event, "content_block", dict))
                self._blocks[need(event, "index", int)] = block
                return _begin(block, self.reasoning)
            case "content_block_delta":
                index = need(event, "index", int)
                if index not in self._blocks:
                    raise wire.malformed(f"the stream adds to content block {index}, which it never began")
                delta = need(event, "delta", dict)
                if text := self._blocks[index].add(delta):
                    self.reasoning.end()
                elif delta.get("type") == "thinking_delta":
                    self.reasoning.add(delta["thinking"])
                return text
            case "message_delta":
                delta = need(event, "delta", dict)
                self._stop = maybe(delta, "stop_reason", str, self._stop)
                self._container = _container(delta) or self._container
                self._count(event)
            case "message_stop":
                self.finished = True
        return ""

    def reply(self) -> Reply:
        blocks = [block for _, block in sorted(self._blocks.items())]
        if not self.finished:
            length = sum(len(part) for block in blocks for part in block.grown.get("text", []))
            raise wire.truncated("a message_stop", length)
        reply = _reply(self._target, blocks, self._stop, self._usage, self._container)
        return replace(reply, reasoning=self.reasoning.whole())

    def _count(self, holder: _Json) -> None:
        # The last numbers count: later events repeat those of earlier ones, brought up to date.
        usage = maybe(holder, "usage", dict, {})
        self._usage |= {key: value for key, value in usage.items() if value is not None}


def _begin(block: _Block, reasoning: wire.Reasoning) -> str:
    """The text that the block has when it begins."""
    if block.start.get("type") == "thinking":
        reasoning.begin_part()
        reasoning.add(block.start.get("thinking"))
        return ""
    if text := maybe(block.start, "text", str, ""):
        reasoning.end()
    return text


def _reply(target: Target, blocks: list[_Block], stop_reason: str, usage: _Json, container: str | None) -> Reply:
    asks = tuple(block.ask() for block in blocks if block.start.get("type") == "tool_use")
    content = [block.finished() for block in blocks]
    stop = wire.end_without_asks(_STOPS.get(stop_reason, StopReason.UNKNOWN), asks)
    texts = [block.get("text") for block in content if block.get("type") == "text"]
    # Blocks go back to the provider where they say more than text and calls do: a paused turn, signed thoughts, tools
    # that the provider ran.
    special = stop is StopReason.PAUSE_TURN or any(block.get("type") not in {"text", "tool_use"} for block in content)
    extra = {"provider": target.provider, "content": content, **({"container": container} if container else {})}
    return Reply(
        text=wire.clean("".join(text for text in texts if isinstance(text, str))),
        asks=asks,
        stop=stop,
        model=target.name,
        usage=_counted(usage),
        extra=extra if container or special else {},
    )


def _container(holder: _Json) -> str | None:
    container = holder.get("container")
    return maybe(container, "id", str, None) if isinstance(container, dict) else None


def _counted(usage: _Json) -> Usage:
    # This provider leaves cached tokens out of input_tokens; ours are all that went in, as elsewhere.
    read, written = wire.count(usage, "cache_read_input_tokens"), wire.count(usage, "cache_creation_input_tokens")
    return Usage(
        input_tokens=wire.count(usage, "input_tokens") + read + written,
        output_tokens=wire.count(usage, "output_tokens"),
        cached_tokens=read,
        cache_write_tokens=written,
    )
