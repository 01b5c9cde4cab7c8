"""What a runner hands out: a reply that is held, and how a run ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.model import StopReason, ToolAsk, Usage

Pushed = str | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A reply of the model, as long as it is held. Pushed, it stands for itself: `runner.push_messages(message)`."""

    id: str
    iteration: int
    text: str
    asks: tuple[ToolAsk, ...]
    stop: StopReason
    model: str
    usage: Usage

    @classmethod
    def of(cls, held: Mapping[str, Any]) -> Message:
        asks = tuple(ToolAsk(**ask) for ask in held["asks"])
        return cls(**{**held, "asks": asks, "stop": StopReason(held["stop"]), "usage": Usage(**held["usage"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended. `text`: its answer, where it ended with one."""

    turn_id: str
    run_id: str | None
    disposition: str
    text: str | None
    reason: str | None
    code: str | None
    detail: str | None

    @property
    def ok(self) -> bool:
        return self.disposition == "answered"

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> Outcome:
        names = ("turn_id", "run_id", "disposition", "reason", "code", "detail")
        return cls(text=shown["answer"], **{name: shown[name] for name in names})


def as_given(messages: Sequence[Message | Pushed | Sequence[Pushed]]) -> list[dict[str, Any]]:
    """Words of a user, replies, results, or messages as they go over the wire; a list stands for its members."""
    return [one for message in messages for one in _given(message)]


def _given(message: Message | Pushed | Sequence[Pushed]) -> Iterator[dict[str, Any]]:
    match message:
        case str():
            yield {"role": "user", "text": message}
        case Message():
            yield {"role": "assistant", "reply": message.id}
        case Mapping():
            yield dict(message)
        case _:
            for one in message:
                yield from _given(one)
