"""Questions that calls and gates ask in tests, which calls ask them, and the yes of a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from chordage.orchestrator.core.approvals import Action, DecisionRequest, Question, Why
from chordage.orchestrator.core.verdicts import SuspendCall
from chordage.orchestrator.gateways.ports import CallOrder
from support.world import World

ASK = Question(why=Why.TOOL, prompt="May I?")
GATE = SuspendCall(prompt="Really?")

Asking = Callable[[CallOrder], Question | None]


def asks_of(*numbers: int) -> Asking:
    """The calls with these numbers suspend until they get an answer."""
    return lambda order: ASK if order.arguments["n"] in numbers and order.decision is None else None


def asks_once(*numbers: int, question: Question = ASK) -> Asking:
    """The calls with these numbers ask the first time they run."""
    asked: set[str] = set()

    def ask(order: CallOrder) -> Question | None:
        if order.arguments.get("n") not in numbers or order.call_id in asked:
            return None
        asked.add(order.call_id)
        return question

    return ask


def asks_until_resumed(world: World, *numbers: int) -> Asking:
    """The calls with these numbers ask, also where their first question died with its process."""

    def ask(order: CallOrder) -> Question | None:
        on_record = world.rows("calls", id=order.call_id)
        return (
            ASK if order.arguments.get("n") in numbers and not (on_record and on_record[0]["suspension_id"]) else None
        )

    return ask


def approval(row: dict[str, Any], payload: Any = True, **more: Any) -> DecisionRequest:
    """`row` is a question or its call."""
    return DecisionRequest(target=row["id"], action=Action.RESUME, payload=payload, **more)


def approve(world: World, row: dict[str, Any], payload: Any = True, **more: Any) -> None:
    world.decide(approval(row, payload, **more))
    world.run_dry()


def check_leave(world: World) -> None:
    """No call ran again, unless a person said so."""
    leave = Counter(row["call_id"] for row in world.rows("decisions", action="resume"))
    ran = Counter(order.call_id for order in world.tools.orders)
    assert all(times <= 1 + leave[call_id] for call_id, times in ran.items()), (ran, leave)
