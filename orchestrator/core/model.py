"""Prompts and replies, independent of the wire format of a provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class StopReason(StrEnum):
    END = "end"
    TOOL_USE = "tool_use"
    PAUSE_TURN = "pause_turn"
    MAX_TOKENS = "max_tokens"
    REFUSAL = "refusal"
    UNKNOWN = "unknown"


class Fault(StrEnum):
    """Why a model call failed. The first block may pass on a retry, the second will not."""

    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    SERVER = "server"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"

    QUOTA = "quota"
    AUTH = "auth"
    CONTEXT = "context"
    REJECTED = "rejected"

    @property
    def retryable(self) -> bool:
        return self not in {Fault.QUOTA, Fault.AUTH, Fault.CONTEXT, Fault.REJECTED}


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolAsk:
    """A tool call of a reply. `arguments` is None where the model did not send a JSON object: see `raw`."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    raw: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    input_tokens: int = 0  # with the cached ones
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input: read from the provider's cache
    cache_write_tokens: int = 0  # of the input: written to it
    cost_nanos: int | None = 0  # nano-dollars, of the replies that have a price; None: unknown, as none of them has one
    unpriced: int = 0  # replies without a price

    def __add__(self, other: Usage) -> Usage:
        return usage_from({name: (getattr(self, name) or 0) + (getattr(other, name) or 0) for name in COUNTS})

    def __sub__(self, other: Usage) -> Usage:
        return usage_from({name: (getattr(self, name) or 0) - (getattr(other, name) or 0) for name in COUNTS})


COUNTS = tuple(count.name for count in fields(Usage))  # as they are stored; of an unknown cost 0
TOKENS = tuple(name for name in COUNTS if name.endswith("_tokens"))


def usage_from(counts: Mapping[Any, Any], prefix: str = "") -> Usage:
    """From stored numbers. Where a part of the cost is unknown and the rest is 0, all of it is unknown."""
    numbers = {name: int(counts[prefix + name] or 0) for name in COUNTS}
    is_unknown = numbers["unpriced"] > 0 and not numbers["cost_nanos"]
    return Usage(**{**numbers, "cost_nanos": None if is_unknown else numbers["cost_nanos"]})  # type: ignore[arg-type]  # int


@dataclass(frozen=True, kw_only=True, slots=True)
class UserSays:
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AssistantSays:
    text: str
    asks: tuple[ToolAsk, ...] = ()
    # Data that the provider needs back unchanged (pause_turn blocks, reasoning signatures).
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSays:
    """The result of one ask, directly behind the assistant message with it."""

    ask_id: str
    name: str
    content: str
    is_error: bool = False


Said = UserSays | AssistantSays | ToolSays


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOffer:
    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    system: str
    said: tuple[Said, ...]
    offers: tuple[ToolOffer, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    cache: bool = False  # tell the provider which part will be sent again
    stable: int = 0  # characters of `system` that will be sent again; 0: all of it
    output: dict[str, Any] | None = None  # the JSON Schema of the final answer, for providers that support one


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One request to one model, successful or not. Recorded with the reply, or with the failure."""

    model: str
    seconds: float
    fault: Fault | None = None
    detail: str = ""
    usage: Usage = Usage()
    first_text: float | None = None  # seconds until the first text came; None: none did, or nothing was streamed


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    text: str
    asks: tuple[ToolAsk, ...]
    stop: StopReason
    model: str
    usage: Usage = Usage()
    extra: dict[str, Any] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    reasoning: str = ""  # what the model wrote for itself before its text; shown to people, sent to no model
