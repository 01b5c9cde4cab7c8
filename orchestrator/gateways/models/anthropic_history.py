"""Anthropic's Messages format: what was said so far, under its rules.

User and assistant take turns, the user begins; neighbours of one role become one message. The results of all calls of
an assistant message stand at the head of the user message behind it. Ids of calls are unique over the whole history and
made of letters, digits, _ and -, which ids of other providers need not be. Empty text is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from chordage.orchestrator.core.model import AssistantSays, Said, ToolAsk, ToolSays, UserSays

_Block = dict[str, Any]


def messages(history: Iterable[Said], provider: str) -> list[dict[str, Any]]:
    ids = _Ids()
    spoken = [(_role(said), _blocks(said, provider, ids)) for said in history]
    turns = [
        {"role": role, "content": _results_first([block for _, blocks in group for block in blocks])}
        for role, group in groupby([turn for turn in spoken if turn[1]], key=lambda turn: turn[0])
    ]
    return turns if turns and turns[0]["role"] == "user" else [_opening(), *turns]


def names_of_tools_used(history: Iterable[Said]) -> list[str]:
    return sorted({ask.name for said in history if isinstance(said, AssistantSays) for ask in said.asks})


def container(history: Iterable[Said], provider: str) -> dict[str, str]:
    """The container in which the provider's own tools left their work, if they have one, as a field of the request."""
    extras = [said.extra for said in history if isinstance(said, AssistantSays)]
    ids = [extra["container"] for extra in extras if extra.get("provider") == provider and "container" in extra]
    return {"container": ids[-1]} if ids else {}


class _Ids:
    """The ids of calls as they go over the wire; a function of the history alone, or no prompt cache would ever hit."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._latest: dict[str, str] = {}

    def new(self, ask_id: str) -> str:
        legal = re.sub(r"[^a-zA-Z0-9_-]", "_", ask_id) or "call"
        count, chosen = 1, legal
        while chosen in self._used:
            count, chosen = count + 1, f"{legal}_{count + 1}"
        self._used.add(chosen)
        self._latest[ask_id] = chosen
        return chosen

    def of_result(self, ask_id: str) -> str:
        return self._latest.get(ask_id) or self.new(ask_id)


def _role(said: Said) -> str:
    return "assistant" if isinstance(said, AssistantSays) else "user"


def _blocks(said: Said, provider: str, ids: _Ids) -> list[_Block]:
    match said:
        case UserSays(text=text):
            return _text(text)
        case ToolSays():
            failed = {"is_error": True} if said.is_error else {}
            result = {"type": "tool_result", "tool_use_id": ids.of_result(said.ask_id), "content": said.content}
            return [{**result, **failed}]
        case AssistantSays():
            return _unchanged(said, provider, ids) or [*_text(said.text), *(_tool_use(ask, ids) for ask in said.asks)]


def _unchanged(said: AssistantSays, provider: str, ids: _Ids) -> list[_Block]:
    """The very blocks the provider sent, where it wants them back and they still tell what the history tells."""
    blocks: list[_Block] = said.extra.get("content", []) if said.extra.get("provider") == provider else []
    asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
    if asked != [ask.id for ask in said.asks]:
        return []
    return [{**block, "id": ids.new(block["id"])} if block["type"] == "tool_use" else block for block in blocks]


def _text(text: str) -> list[_Block]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _tool_use(ask: ToolAsk, ids: _Ids) -> _Block:
    return {"type": "tool_use", "id": ids.new(ask.id), "name": ask.name, "input": ask.arguments or {}}


def _results_first(blocks: list[_Block]) -> list[_Block]:
    return sorted(blocks, key=lambda block: block["type"] != "tool_result")


def _opening() -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "(The conversation goes on.)"}]}
