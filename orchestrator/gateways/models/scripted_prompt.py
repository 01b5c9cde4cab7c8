"""From a request in either wire format back to the prompt it was made from, for the scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from chordage.orchestrator.core.model import AssistantSays, Prompt, Said, ToolAsk, ToolSays, UserSays

_Message = dict[str, Any]


def from_openai(body: dict[str, Any]) -> Prompt:
    messages = body["messages"]
    system = "\n".join(_text(message) for message in messages if message["role"] == "system")
    return Prompt(system=system, said=tuple(_openai(message) for message in messages if message["role"] != "system"))


def from_anthropic(body: dict[str, Any]) -> Prompt:
    said = [one for message in body["messages"] for one in _anthropic(message)]
    return Prompt(system=_text({"content": body.get("system")}), said=tuple(said))


def _openai(message: _Message) -> Said:
    match message["role"]:
        case "tool":
            return ToolSays(ask_id=message["tool_call_id"], name="", content=_text(message))
        case "assistant":
            calls = message.get("tool_calls") or []
            asks = (_ask(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls)
            return AssistantSays(text=_text(message), asks=tuple(asks))
        case _:
            return UserSays(text=_text(message))


def _anthropic(message: _Message) -> Iterator[Said]:
    """Each block of a user message is something said for itself: the wire has put together what stood apart."""
    if message["role"] == "assistant":
        uses = [block for block in _blocks(message) if block["type"] == "tool_use"]
        asks = (ToolAsk(id=use["id"], name=use["name"], arguments=use["input"]) for use in uses)
        yield AssistantSays(text=_text(message), asks=tuple(asks))
        return
    for block in _blocks(message):
        if block["type"] == "tool_result":
            yield ToolSays(ask_id=block["tool_use_id"], name="", content=_text(block))
        else:
            yield UserSays(text=block["text"])


def _ask(ask_id: str, name: str, arguments: str) -> ToolAsk:
    return ToolAsk(id=ask_id, name=name, arguments=json.loads(arguments))


def _text(message: _Message) -> str:
    return "\n".join(block["text"] for block in _blocks(message) if block["type"] == "text")


def _blocks(message: _Message) -> list[_Message]:
    content = message.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
