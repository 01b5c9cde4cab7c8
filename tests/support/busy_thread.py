"""A thread that is busy when a further message comes, and what its model has read at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chordage.orchestrator.core.agent import WhenBusy
from chordage.orchestrator.core.model import Prompt, Reply, ToolSays, UserSays
from chordage.orchestrator.core.transcript import is_note
from chordage.orchestrator.gateways.ports import CallOrder
from support.fakes import asking, spoken
from support.world import World


def a_round_then_user_texts(prompt: Prompt) -> Reply:
    """Two tools once on this thread, and then what users have said to it."""
    if not any(isinstance(said, ToolSays) for said in prompt.said):
        return asking(("pure", {"n": 0}), ("pure", {"n": 1}))
    return answer_with_user_texts(prompt)


def answer_with_user_texts(prompt: Prompt) -> Reply:
    return spoken(" | ".join(user_texts(prompt)))


def user_texts(prompt: Prompt) -> list[str]:
    return [said.text for said in prompt.said if isinstance(said, UserSays) and not is_note(said)]


def notes(prompt: Prompt) -> list[str]:
    return [said.text for said in prompt.said if is_note(said)]


def shapes(prompt: Prompt) -> list[str]:
    return [type(said).__name__ for said in prompt.said]


def steer(world: World, text: str, **more: Any) -> str:
    return world.submit(text, when_busy=WhenBusy.STEER, **more)


def once(act: Callable[[], object]) -> Callable[[object], None]:
    """To be done at the first call."""
    left = iter([act])

    def do(_: object) -> None:
        for doing in left:
            doing()
            return

    return do


def in_the_first_call(world: World, act: Callable[[], object]) -> None:
    """While a tool runs."""
    do = once(act)

    def before(order: CallOrder) -> None:
        do(order)

    world.tools.before = before


def in_the_model_call(world: World, act: Callable[[], object], *, number: int = 1) -> None:
    """While the model is asked for that many times."""
    do = once(act)

    def before(prompt: Prompt) -> None:
        if len(world.models.prompts) == number:
            do(prompt)

    world.models.before_reply = before


def said_by_turn(world: World, turn_id: str) -> dict[str, Any]:
    return world.row("turns", id=turn_id)
