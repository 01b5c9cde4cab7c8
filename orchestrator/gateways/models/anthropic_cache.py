"""Anthropic's Messages format: which parts of a request the provider shall keep for the next one.

A mark says that everything up to it will come again. Four are allowed, and so many are set: behind the tools, behind
the part of the system text that stays, behind what the request before this one ended with, and behind the last thing
said. The provider looks for what it has kept at most 20 blocks before a mark, and a round may have more than that:
hence the third one. What may still change is no such end: a call that waits for a decision has another result later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chordage.orchestrator.core.model import Prompt
from chordage.orchestrator.core.transcript import AWAITING, NOT_STARTED

MARK = {"cache_control": {"type": "ephemeral"}}
_OF_MESSAGES = 2
_Block = dict[str, Any]


def marked(body: dict[str, Any], prompt: Prompt) -> dict[str, Any]:
    """Nothing is added where the room's parameters bring marks of their own."""
    parts = [*body.get("tools", []), *_blocks(body.get("system")), *_spoken(body)]
    if "cache_control" in body or any("cache_control" in part for part in parts):
        return body
    changed = dict(body)
    if tools := body.get("tools"):
        changed["tools"] = [*tools[:-1], {**tools[-1], **MARK}]
    if isinstance(system := body.get("system"), str) and system:
        changed["system"] = _system(system, prompt)
    changed["messages"] = _messages(body["messages"])
    return changed


def _blocks(content: Any) -> list[_Block]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _spoken(body: dict[str, Any]) -> Iterator[_Block]:
    for message in body["messages"]:
        yield from _blocks(message["content"])


def _system(system: str, prompt: Prompt) -> list[_Block]:
    """The whole of it, unless plugins have added something that changes from request to request."""
    stays = prompt.stable if system == prompt.system else 0
    if not 0 < stays < len(system):
        return [{"type": "text", "text": system, **MARK}]
    return [{"type": "text", "text": system[:stays], **MARK}, {"type": "text", "text": system[stays:].lstrip("\n")}]


def _messages(messages: list[_Block]) -> list[_Block]:
    """A request ends with something that a user has said, or with results."""
    stable = next((place for place, one in enumerate(messages) if _may_change(one)), len(messages))
    ends = [place for place in range(stable) if messages[place]["role"] == "user"][-_OF_MESSAGES:]
    return [_with_mark(one) if place in ends else one for place, one in enumerate(messages)]


def _may_change(message: _Block) -> bool:
    waiting = {AWAITING, NOT_STARTED}
    return any(block["type"] == "tool_result" and block["content"] in waiting for block in message["content"])


def _with_mark(message: _Block) -> _Block:
    *before, last = message["content"]
    return {**message, "content": [*before, {**last, **MARK}]}
