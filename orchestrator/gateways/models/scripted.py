"""A model that says what its script says: for tests, demonstrations, and the first minute without an API key.

Which reply comes is a function of the prompt and the number of the attempt, never of what this process did before:
the next call of the same turn may be made by another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.model import (
    Fault,
    Prompt,
    Reply,
    StopReason,
    ToolAsk,
    ToolSays,
    Usage,
    UserSays,
)
from chordage.orchestrator.core.transcript import is_note
from chordage.orchestrator.gateways.models.script import Fail, ScriptedReply
from chordage.orchestrator.gateways.models.script_files import Chooser, place
from chordage.orchestrator.gateways.models.wire import AttemptContext, AttemptFailed, ask

_BREAKS = {Fault.TRUNCATED, Fault.CONNECTION}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A scripted reply with its templates filled in for one prompt."""

    text: str
    asks: tuple[ToolAsk, ...]
    raw: tuple[str, ...]  # the arguments of each ask, as they go over a wire
    stop: StopReason
    usage: Usage


class ScriptedModel:
    def __init__(self, chooser: Chooser, name: str) -> None:
        self._chooser = chooser
        self._name = name

    def attempt(self, prompt: Prompt, context: AttemptContext) -> Reply:
        reply = self._chooser(prompt, context.number)
        line = line_of(reply, prompt)
        _wait(context, reply.latency)
        if reply.fail and reply.fail.hits(context.number):
            self._fail(reply.fail, line.text, reply, context)
        self._speak(pieces(line.text, reply.chunk), reply, context)
        return Reply(text=line.text, asks=line.asks, stop=line.stop, model=self._name, usage=line.usage)

    def _fail(self, fail: Fail, text: str, reply: ScriptedReply, context: AttemptContext) -> None:
        if fail.fault in _BREAKS:
            self._speak(pieces(text[: len(text) // 2], reply.chunk), reply, context)
        raise AttemptFailed(fail.fault, "the script says so", retry_after=fail.retry_after)

    @staticmethod
    def _speak(words: Iterator[str], reply: ScriptedReply, context: AttemptContext) -> None:
        for number, piece in enumerate(words):
            if number:
                context.abort.wait(reply.pace) if reply.pace else context.abort.check()
            context.delta(piece)


def line_of(reply: ScriptedReply, prompt: Prompt) -> Line:
    filled = _Filling(prompt)
    raw = tuple(filled.arguments(call.arguments) for call in reply.calls)
    asks = tuple(
        # The length of the history makes ids that no other round of the thread has.
        ask(call.id or f"call_{len(prompt.said)}_{number}", call.name, raw[number])
        for number, call in enumerate(reply.calls)
    )
    text = filled.text(reply.text)
    stop = reply.stop or (StopReason.TOOL_USE if asks else StopReason.END)
    return Line(text=text, asks=asks, raw=raw, stop=stop, usage=reply.usage or _estimate(prompt, text, raw))


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


class _Filling:
    """{user} is the last user message, {results} what the tools said since, {turn} the number of the user message."""

    def __init__(self, prompt: Prompt) -> None:
        user, turn, _ = place(prompt)
        self._values = {"user": user, "results": _results(prompt), "turn": str(turn)}

    def text(self, template: str) -> str:
        # Not str.format: scripts are full of braces that mean JSON.
        return re.sub(r"\{(user|results|turn)\}", lambda found: self._values[found[1]], template)

    def arguments(self, given: dict[str, Any] | str) -> str:
        return self.text(given) if isinstance(given, str) else json.dumps(self._deep(given), ensure_ascii=False)

    def _deep(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                return {key: self._deep(item) for key, item in value.items()}
            case list():
                return [self._deep(item) for item in value]
            case _:
                return value


def _results(prompt: Prompt) -> str:
    found: list[str] = []
    for said in prompt.said:
        match said:
            case UserSays() if not is_note(said):
                found.clear()
            case ToolSays(content=content):
                found.append(content)
            case _:
                pass
    return "\n".join(found)


def _estimate(prompt: Prompt, text: str, raw: tuple[str, ...]) -> Usage:
    """Four characters a token, so that usage and budgets have something to show."""
    read = len(prompt.system) + sum(
        len(said.content if isinstance(said, ToolSays) else said.text) for said in prompt.said
    )
    written = len(text) + sum(map(len, raw))
    return Usage(input_tokens=-(-read // 4), output_tokens=-(-written // 4))


def _wait(context: AttemptContext, seconds: float) -> None:
    context.abort.check()
    if seconds > context.timeout:
        context.abort.wait(context.timeout)
        raise AttemptFailed(Fault.TIMEOUT, f"not finished within {context.timeout:g} s")
    if seconds:
        context.abort.wait(seconds)
