"""What the wire formats share: an attempt and how it fails, what a format must do, and reading JSON field by field.

`openai` and `anthropic` are the formats. A field of the wrong shape makes a MALFORMED answer that names the field.

The reasoning of a reply is what the model wrote before its first text. What comes behind that is left out, and so is
what comes behind `REASONING_LIMIT`: so reasoning is shown before the text, whether it was streamed or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from chordage.orchestrator.core.errors import ChordageError
from chordage.orchestrator.core.model import Fault, Prompt, Reply, StopReason, ToolAsk
from chordage.orchestrator.core.text import loads_json
from chordage.orchestrator.gateways.ports import Abort

T = TypeVar("T")
DETAIL_LIMIT = 300
MOST_TOKENS = 20_000_000  # of one reply: no model reads as many, and the sum of a run has to fit its column
REASONING_LIMIT = 500_000  # characters


# an attempt


class AttemptFailed(ChordageError):
    """One attempt at a model call failed. Stays inside this package: what leaves is ModelFailed, with all of them."""

    def __init__(self, fault: Fault, detail: str, *, retry_after: float | None = None) -> None:
        self.fault = fault
        self.detail = " ".join(detail.split())[:DETAIL_LIMIT]
        self.retry_after = retry_after
        super().__init__(f"{fault}: {self.detail}")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptContext:
    """How an attempt is to be made. `number` counts from 1 for each model."""

    abort: Abort
    number: int = 1
    timeout: float = 120.0
    stream: bool = True
    on_delta: Callable[[str], None] | None = None
    on_reasoning: Callable[[str], None] | None = None

    def delta(self, text: str) -> None:
        if text and self.stream and self.on_delta:
            self.on_delta(text)

    def reasoning(self, text: str) -> None:
        if text and self.stream and self.on_reasoning:
            self.on_reasoning(text)


class Model(Protocol):
    def attempt(self, prompt: Prompt, context: AttemptContext) -> Reply:
        """Ask once. Raises AttemptFailed, Aborted, HandedOver, and a UserError where only a person can help."""
        ...


# a wire format


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The model a request goes to. `name` is what we call it, `model` what its provider calls it."""

    provider: str
    model: str
    max_tokens_key: str = "max_tokens"
    json_schema: bool = False

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"


class Reasoning:
    """Of one answer, as it comes."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._left = REASONING_LIMIT
        self._new: list[str] = []  # not taken yet
        self._begins_part = False

    def begin_part(self) -> None:
        """What comes next is set apart from what came before."""
        self._begins_part = bool(self._pieces)

    def add(self, text: object) -> None:
        """Anything else than a text is no reason to throw an answer away."""
        if not (isinstance(text, str) and text and self._left):
            return
        piece = ("\n\n" + text if self._begins_part else text)[: self._left]
        self._begins_part = False
        self._left -= len(piece)
        self._pieces.append(piece)
        self._new.append(piece)

    def end(self) -> None:
        """The text begins."""
        self._left = 0

    def taken(self) -> str:
        """What has come since this was asked before."""
        new, self._new = "".join(self._new), []
        return new

    def whole(self) -> str:
        return clean("".join(self._pieces))


class StreamReader(Protocol):
    """Puts one streamed answer together. What an event adds to its reasoning comes before the text that it adds."""

    finished: bool
    reasoning: Reasoning

    def feed(self, data: str) -> str:
        """Take in one event; returns the text it adds."""
        ...

    def reply(self) -> Reply:
        """The whole answer. Raises AttemptFailed(TRUNCATED) when the stream ended before the answer did."""
        ...


class WireFormat(Protocol):
    path: str

    def headers(self, key: str | None) -> dict[str, str]: ...
    def body(self, prompt: Prompt, target: Target, *, stream: bool) -> dict[str, Any]: ...
    def whole(self, answer: dict[str, Any], target: Target) -> Reply: ...
    def reader(self, target: Target) -> StreamReader: ...


def encoded(body: dict[str, Any]) -> bytes:
    # A lone surrogate in a text becomes a question mark and not a failed turn.
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def with_params(body: dict[str, Any], params: dict[str, Any], wire: str) -> dict[str, Any]:
    """The body with the caller's parameters over it.

    A table named after a wire format ("openai", "anthropic") counts for that one only, so that fallbacks can differ.
    A parameter that is None takes the field out of the request, also one of ours.
    """
    own = params.get(wire)
    general = {key: value for key, value in params.items() if key not in {"openai", "anthropic"}}
    merged = {**body, **general, **(own if isinstance(own, dict) else {})}
    return {key: value for key, value in merged.items() if value is not None}


def ask(ask_id: str, name: str, raw: str) -> ToolAsk:
    parsed = arguments(raw)
    return ToolAsk(id=ask_id, name=name, arguments=parsed, raw="" if parsed is not None else raw)


def end_without_asks(stop: StopReason, asks: tuple[ToolAsk, ...]) -> StopReason:
    """A stop for tools without any tool call is an end: there is nothing to run."""
    return StopReason.END if stop is StopReason.TOOL_USE and not asks else stop


def truncated(missing: str, length: int) -> AttemptFailed:
    return AttemptFailed(Fault.TRUNCATED, f"the stream ended without {missing}, after {length} characters of text")


# reading JSON


def malformed(why: str) -> AttemptFailed:
    return AttemptFailed(Fault.MALFORMED, why)


def parse(text: str | bytes) -> dict[str, Any]:
    try:
        value = loads_json(text)
    except (ValueError, RecursionError) as error:
        raise malformed(f"the answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise malformed(f"the answer is {_kind(value)} where an object was expected")
    return value


def need(holder: dict[str, Any], key: str, kind: type[T]) -> T:
    value = holder.get(key)
    if not isinstance(value, kind):
        raise malformed(f"the answer has {_kind(value)} as {key!r} where {kind.__name__} was expected")
    return value


def maybe(holder: dict[str, Any], key: str, kind: type[T], default: T) -> T:
    """The field, or the default where it is missing or null."""
    return default if holder.get(key) is None else need(holder, key, kind)


def objects(holder: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects; missing and null count as empty."""
    items = maybe(holder, key, list, [])
    if not all(isinstance(item, dict) for item in items):
        raise malformed(f"the answer has something other than objects in {key!r}")
    return items


def count(holder: dict[str, Any], key: str) -> int:
    """A token count. A wrong one is no reason to throw an answer away."""
    value = holder.get(key)
    return value if isinstance(value, int) and 0 < value <= MOST_TOKENS else 0


def arguments(raw: str) -> dict[str, Any] | None:
    """What a model sent as tool arguments, or None when it is no JSON object. Nothing at all means none are needed."""
    if not raw.strip():
        return {}
    try:
        value = loads_json(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def clean(text: str) -> str:
    """Text that every database can hold: halves of an emoji that came in two chunks are joined, NUL is dropped."""
    if text.isascii():
        return text.replace("\0", "")
    return text.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
