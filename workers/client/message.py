"""What a runner hands out: what is held, and how a run ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.model import StopReason, ToolAsk, Usage

Pushed = str | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a planner decided, as it was understood. `ends`: why nothing of it would be carried out. `refused`: commands
    that would not be, each by its place.
    """

    round: int
    commands: tuple[dict[str, Any], ...]
    ends: str | None
    refused: dict[str, dict[str, Any]]
    notes: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, held: Mapping[str, Any]) -> Plan:
        return cls(**{**held, "commands": tuple(held["commands"]), "notes": tuple(held["notes"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A reply of the model, as long as it is held. Pushed, it stands for itself: `runner.push_messages(message)`. One
    of a planner has its `plan`; what came of the plan is a message without words, with the `records`.
    """

    id: str
    iteration: int
    text: str
    asks: tuple[ToolAsk, ...]
    stop: StopReason
    model: str
    usage: Usage
    plan: Plan | None = None
    records: tuple[dict[str, Any], ...] | None = None

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> Message | None:
        """What a turn is held with, if it is."""
        held, came_of_it = shown["reply"], shown["round"]
        if held is None:
            return None if came_of_it is None else cls._of_round(came_of_it, shown["iteration"])
        asks = tuple(ToolAsk(**ask) for ask in held["asks"])
        known = {"asks": asks, "stop": StopReason(held["stop"]), "usage": Usage(**held["usage"])}
        return cls(**{**held, **known}, plan=Plan.of(shown["plan"]) if shown["plan"] else None)

    @classmethod
    def _of_round(cls, held: Mapping[str, Any], iteration: int) -> Message:
        return cls(
            id=held["id"], iteration=iteration, text="", asks=(), stop=StopReason.END, model="", usage=Usage(),
            records=tuple(held["records"]),
        )  # fmt: skip


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
