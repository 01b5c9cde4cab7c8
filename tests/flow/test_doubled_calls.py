"""A wake-up for a model call that comes twice asks the model once while the first holder lives."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.intents import CallModel
from support.busy_thread import in_the_model_call
from support.fakes import rounds_of, spoken
from support.invariants import check_all
from support.world import Died, World

pytestmark = pytest.mark.usefixtures("calls_anywhere")


@pytest.mark.parametrize("number", [1, 2], ids=["at the first step", "behind a round"])
def test_repeated_wake_up_during_the_model_call_changes_nothing(world: World, number: int) -> None:
    world.models.script = rounds_of(1)
    last: list[CallModel] = []
    deliver = world.deliver

    def come_again() -> None:
        for _ in range(4):
            assert deliver(last[-1]) == []

    in_the_model_call(world, come_again, number=number)
    world.submit()
    while world.pending:
        intent = world.pending.pop(0)
        if isinstance(intent, CallModel):
            last.append(intent)
        deliver(intent)

    assert len(world.models.prompts) == 2
    check_all(world.store)


def test_after_the_death_of_its_holder_the_model_is_called_again(world: World) -> None:
    def die_once(prompt) -> None:
        world.models.before_reply = lambda prompt: None
        raise world.kill()

    world.models.script = lambda prompt: spoken("ok")
    world.models.before_reply = die_once
    world.submit()
    world.deliver(world.pending.pop(0))
    wake_up = world.pending.pop(0)
    with pytest.raises(Died):
        world.deliver(wake_up)
    world.deliver(wake_up)
    assert len(world.models.prompts) == 1, "its lease holds"
    world.recover()

    assert len(world.models.prompts) == 2
    check_all(world.store)
