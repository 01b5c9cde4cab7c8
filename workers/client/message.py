"""What a runner yields and returns: held replies, and how a run ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from chordage.orchestrator.core.model import StopReason, ToolAsk, Usage
from chordage.orchestrator.views.stepped import HeldPlan

Pushed = str | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldMessage:
    """A held reply of the model; `runner.push_messages(message)` puts it into the history. A planner's reply has its
    `plan`. The results of a plan are a message without text, with the `records`.
    """

    id: str
    iteration: int
    text: str
    asks: tuple[ToolAsk, ...]
    stop: StopReason
    model: str
    usage: Usage
    plan: HeldPlan | None = None
    records: tuple[dict[str, Any], ...] | None = None

    @classmethod
    def of(cls, turn: Mapping[str, Any]) -> HeldMessage | None:
        """The held reply of a turn, or the results of its plan; None if it holds neither."""
        reply, held_round, plan = turn["reply"], turn["round"], turn["plan"]
        if reply is None:
            return None if held_round is None else cls._of_round(held_round, turn["iteration"])
        asks = tuple(ToolAsk(**_known(ToolAsk, ask)) for ask in reply["asks"])
        typed = {"asks": asks, "stop": StopReason(reply["stop"]), "usage": Usage(**_known(Usage, reply["usage"]))}
        if plan is not None:
            lists = {"commands": tuple(plan["commands"]), "notes": tuple(plan["notes"])}
            plan = HeldPlan(**{**_known(HeldPlan, plan), **lists})
        return cls(**{**_known(cls, reply), **typed}, plan=plan)

    @classmethod
    def _of_round(cls, held: Mapping[str, Any], iteration: int) -> HeldMessage:
        return cls(
            id=held["id"], iteration=iteration, text="", asks=(), stop=StopReason.END, model="", usage=Usage(),
            records=tuple(held["records"]),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOutcome:
    """How a run ended. `text`: its answer, if it ended with one."""

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
    def of(cls, turn: Mapping[str, Any]) -> RunOutcome:
        names = ("turn_id", "run_id", "disposition", "reason", "code", "detail")
        return cls(text=turn["answer"], **{name: turn[name] for name in names})


def _known(kind: type[Any], wire: Mapping[str, Any]) -> dict[str, Any]:
    """A newer server may send more fields."""
    return {field.name: wire[field.name] for field in fields(kind) if field.name in wire}


def pushed_messages(messages: Sequence[HeldMessage | Pushed | Sequence[Pushed]]) -> list[dict[str, Any]]:
    """The wire format of texts of a user, held replies, results and messages; a list is replaced by its members."""
    wire: list[dict[str, Any]] = []
    for message in messages:
        match message:
            case str():
                wire.append({"role": "user", "text": message})
            case HeldMessage():
                wire.append({"role": "assistant", "reply": message.id})
            case Mapping():
                wire.append(dict(message))
            case _:
                wire += pushed_messages(message)
    return wire
