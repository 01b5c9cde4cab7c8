"""A model that says what its script says: for tests, demonstrations, and the first minute without an API key.

A YAML script is a list of replies, or a mapping:

    replies:                    # one after the other, from the start again behind each user message
      - text: Let me look.
        tool_calls: [{name: search, arguments: {query: "{user}"}}]
      - text: "I found: {results}"
      - when: weather           # only if the last user message contains this; such replies form a sequence of their own
        text: Sunny.
        fail: {fault: rate_limit, times: 2, retry_after: 1}
    repeat: true                # begin again when the replies run out; or
    default: Nothing more.      # what to say then

`when` may also be a mapping of contains, regex, system (part of the instructions) and turn (which user message it is).
A Python script defines `reply(prompt, attempt)` that returns such a mapping, or only a text.

Which reply comes is a function of the prompt and the number of the attempt, never of what this process did before: the
next call of the same turn may be made by another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from chordage.orchestrator.core.model import (
    AssistantSays,
    Fault,
    Prompt,
    Reply,
    StopReason,
    ToolAsk,
    ToolSays,
    Usage,
    UserSays,
)
from chordage.orchestrator.core.planning.prompts import plan_round
from chordage.orchestrator.core.transcript import is_note
from chordage.orchestrator.gateways.models.wire import AttemptContext, AttemptFailed, ask


class FaultForm(StrEnum):
    """In which shape a fault appears on the wire, where a server speaks for the script, as in our tests."""

    STATUS = "status"
    SSE_ERROR = "sse_error"  # an error event in the middle of the stream
    SSE_GARBAGE = "sse_garbage"  # an event that is not JSON
    JSON = "json"  # half a JSON document
    HTML = "html"  # a page with status 200
    EMPTY = "empty"  # {}
    NO_CHOICES = "no_choices"
    CUT = "cut"  # the answer ends early, in good order
    RESET = "reset"  # the connection breaks
    STALL = "stall"  # silence after the first events
    HANG = "hang"  # silence before the headers


_USUAL_FORM = {
    Fault.TIMEOUT: FaultForm.HANG,
    Fault.CONNECTION: FaultForm.RESET,
    Fault.TRUNCATED: FaultForm.CUT,
    Fault.MALFORMED: FaultForm.JSON,
}
_BREAKS = {Fault.TRUNCATED, Fault.CONNECTION}


# what a script holds


class BadScript(ValueError):
    """The data of a script is not as it must be. The caller, who knows the file and the line, makes it a RoomError."""


class _Part(BaseModel):
    """A mapping in a script. Where only a text is given, it is the value of the key `SHORT`. null: the default.

    pydantic turns a ValueError of a validator into a problem of the script, and lets a TypeError through.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    NAME: ClassVar[str]
    SHORT: ClassVar[str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _mapping(cls, data: Any) -> Any:
        if isinstance(data, str) and cls.SHORT is not None:
            return {cls.SHORT: data}
        if not isinstance(data, dict):
            what = type(data).__name__
            raise ValueError(f"{cls.NAME} must be a mapping or a text, not {what}")  # noqa: TRY004
        known = _keys_of(cls)
        for key in data:
            if key not in known:
                raise ValueError(f"{key!r} is unknown in {cls.NAME}: choose from {', '.join(known)}")
        return {key: value for key, value in data.items() if value is not None}


@cache
def _keys_of(part: type[_Part]) -> list[str]:
    return [field.alias or name for name, field in part.model_fields.items()]


def _compiles(regex: str) -> str:
    try:
        re.compile(regex)
    except re.error as error:
        raise ValueError(f"regex {regex!r} is broken: {error}") from error
    return regex


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptPosition:
    """Where in its conversation a prompt is. `index` counts the replies since the user's message, from 0."""

    user: str
    system: str
    turn: int
    index: int
    plan: int | None = None  # the number of the plan, from 0

    @classmethod
    def of(cls, prompt: Prompt) -> PromptPosition:
        user, turn, index = "", 0, 0
        for said in prompt.said:
            match said:
                case UserSays(text=text) if not is_note(said):
                    user, turn, index = text, turn + 1, 0
                case AssistantSays():
                    index += 1
                case _:
                    pass
        return cls(user=user, system=prompt.system, turn=turn, index=index, plan=plan_round(prompt))

    @property
    def round(self) -> int:
        return 1 + (self.index if self.plan is None else self.plan)


class ReplyCondition(_Part):
    NAME = "when"
    SHORT = "contains"

    contains: str = ""
    regex: Annotated[str, AfterValidator(_compiles)] = ""
    system: str = ""
    turn: int | None = None
    round: int | None = None  # which request since the user's message, from 1
    plan: bool | None = None  # whether it asks for a plan

    def fits(self, position: PromptPosition) -> bool:
        return (
            self.contains.lower() in position.user.lower()
            and bool(re.search(self.regex, position.user))
            and self.system in position.system
            and self.turn in {None, position.turn}
            and self.round in {None, position.round}
            and self.plan in {None, position.plan is not None}
        )


class ScriptedFault(_Part):
    """`times` is how many attempts fail; None: all of them. `after` is how many pieces of a stream come before."""

    NAME = "fail"
    SHORT = "fault"

    fault: Annotated[Fault, Field(strict=False, validate_default=True)] = ""  # type: ignore[assignment]  # says which there are
    times: int | None = None
    retry_after: float | None = None
    how: Annotated[FaultForm | None, Field(strict=False)] = None
    after: int = Field(2, ge=0)

    @property
    def form(self) -> FaultForm:
        return self.how or _USUAL_FORM.get(self.fault, FaultForm.STATUS)

    def hits(self, attempt: int) -> bool:
        return self.times is None or attempt <= self.times


class ScriptedCall(_Part):
    """`arguments` as a text are sent as they are, so that a script can have them broken."""

    NAME = "a tool call"

    name: str = ""
    arguments: Any = {}
    id: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.name:
            raise ValueError("a tool call needs a name")
        if not isinstance(self.arguments, (dict, str)):
            raise ValueError("arguments must be a mapping, or a text to be sent as it is")  # noqa: TRY004
        return self


class ScriptedUsage(_Part):
    NAME = "usage"

    input: int = Field(0, ge=0)
    output: int = Field(0, ge=0)
    cached: int = Field(0, ge=0)
    cache_write: int = Field(0, ge=0)


class ScriptedReply(_Part):
    """`latency` is waited before the first word, `pace` between pieces of `chunk` characters."""

    NAME = "a reply"
    SHORT = "text"

    text: str = ""
    reasoning: str = ""
    calls: Annotated[tuple[ScriptedCall, ...], Field(alias="tool_calls", strict=False)] = ()
    when: ReplyCondition | None = None
    stop: Annotated[StopReason | None, Field(strict=False)] = None
    usage: ScriptedUsage | None = None
    latency: float = Field(0.0, ge=0)
    pace: float = Field(0.0, ge=0)
    chunk: int = Field(12, ge=1)
    fail: ScriptedFault | None = None

    @classmethod
    def of(cls, data: object) -> ScriptedReply:
        """Raises BadScript."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise BadScript(_explain(error)) from error


def _explain(error: ValidationError) -> str:
    """The first problem, with its place: fail.how must be 'status', ... or 'hang', not 'loudly'."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # ours, which name the key
        return str(first["ctx"]["error"])
    place = ".".join(map(str, first["loc"]))
    return f"{place} {first['msg'].replace('Input should be', 'must be')}, not {first['input']!r}"


Chooser: TypeAlias = Callable[[Prompt, int], ScriptedReply]
"""The reply a script gives to a prompt at an attempt. Only these two may decide: turns move between processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    replies: tuple[ScriptedReply, ...]
    repeat: bool = False
    default: ScriptedReply | None = None

    def choose(self, position: PromptPosition) -> ScriptedReply | None:
        """The reply in turn of those whose `when` fits, or of those without one where none fits. A reply that names its
        round is the only one for it; those that are for plans come in the order of the plans.
        """
        fitting = [(reply, reply.when) for reply in self.replies if reply.when and reply.when.fits(position)]
        if named := [reply for reply, when in fitting if when.round is not None]:
            return named[0]
        if position.plan is not None and (plans := [reply for reply, when in fitting if when.plan]):
            return self._at(plans, position.plan)
        sequence = [reply for reply, _when in fitting] or [reply for reply in self.replies if reply.when is None]
        return self._at(sequence, position.index)

    def _at(self, sequence: Sequence[ScriptedReply], index: int) -> ScriptedReply | None:
        if self.repeat and sequence:
            return sequence[index % len(sequence)]
        return sequence[index] if index < len(sequence) else self.default


# a reply, filled in and spoken


@dataclass(frozen=True, kw_only=True, slots=True)
class FilledReply:
    """A scripted reply with its templates filled in for one prompt."""

    text: str
    asks: tuple[ToolAsk, ...]
    raw: tuple[str, ...]  # the arguments of each ask, as they go over a wire
    stop: StopReason
    usage: Usage


class ScriptModel:
    def __init__(self, chooser: Chooser, name: str) -> None:
        self._chooser = chooser
        self._name = name

    def attempt(self, prompt: Prompt, context: AttemptContext) -> Reply:
        reply = self._chooser(prompt, context.number)
        filled = fill_in(reply, prompt)
        context.abort.check()
        if reply.latency > context.timeout:
            context.abort.wait(context.timeout)
            raise AttemptFailed(Fault.TIMEOUT, f"not finished within {context.timeout:g} s")
        if reply.latency:
            context.abort.wait(reply.latency)
        if reply.fail and reply.fail.hits(context.number):
            if reply.fail.fault in _BREAKS:
                context.reasoning(reply.reasoning)
                self._stream(filled.text[: len(filled.text) // 2], reply, context)
            raise AttemptFailed(reply.fail.fault, "the script says so", retry_after=reply.fail.retry_after)
        for piece in pieces(reply.reasoning, reply.chunk):
            context.reasoning(piece)
            context.abort.wait(reply.pace) if reply.pace else context.abort.check()
        self._stream(filled.text, reply, context)
        return Reply(
            text=filled.text, asks=filled.asks, stop=filled.stop, model=self._name, usage=filled.usage,
            reasoning=reply.reasoning,
        )  # fmt: skip

    @staticmethod
    def _stream(text: str, reply: ScriptedReply, context: AttemptContext) -> None:
        for number, piece in enumerate(pieces(text, reply.chunk)):
            if number:
                context.abort.wait(reply.pace) if reply.pace else context.abort.check()
            context.delta(piece)


def fill_in(reply: ScriptedReply, prompt: Prompt) -> FilledReply:
    """{user} is the last user message, {results} the tool results since, {turn} the number of the user message."""
    position = PromptPosition.of(prompt)
    values = {"user": position.user, "results": "\n".join(results_in(prompt)), "turn": str(position.turn)}

    def text_of(template: str) -> str:
        if "{" not in template:
            return template
        # Not str.format: scripts are full of braces that mean JSON.
        return re.sub(r"\{(user|results|turn)\}", lambda match: values[match[1]], template)

    def deep(value: Any) -> Any:
        match value:
            case str():
                return text_of(value)
            case dict():
                return {key: deep(item) for key, item in value.items()}
            case list():
                return [deep(item) for item in value]
            case _:
                return value

    raw = tuple(
        text_of(call.arguments)
        if isinstance(call.arguments, str)
        else json.dumps(deep(call.arguments), ensure_ascii=False)
        for call in reply.calls
    )
    asks = tuple(
        # The length of the history makes ids that no other round of the thread has.
        ask(call.id or f"call_{len(prompt.said)}_{number}", call.name, raw[number])
        for number, call in enumerate(reply.calls)
    )
    text = text_of(reply.text)
    stop = reply.stop or (StopReason.TOOL_USE if asks else StopReason.END)
    return FilledReply(text=text, asks=asks, raw=raw, stop=stop, usage=_usage(reply.usage, prompt, text, raw))


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def results_in(prompt: Prompt) -> list[str]:
    """The results of tools since the last message of the user."""
    results: list[str] = []
    for said in prompt.said:
        match said:
            case UserSays() if not is_note(said):
                results.clear()
            case ToolSays(content=content):
                results.append(content)
            case _:
                pass
    return results


def _usage(usage: ScriptedUsage | None, prompt: Prompt, text: str, raw: tuple[str, ...]) -> Usage:
    if usage is not None:
        return Usage(
            input_tokens=usage.input,
            output_tokens=usage.output,
            cached_tokens=usage.cached,
            cache_write_tokens=usage.cache_write,
        )
    # Four characters a token, so that usage and budgets have something to show.
    read = len(prompt.system) + sum(
        len(said.content if isinstance(said, ToolSays) else said.text) for said in prompt.said
    )
    written = len(text) + sum(map(len, raw))
    return Usage(input_tokens=-(-read // 4), output_tokens=-(-written // 4))
