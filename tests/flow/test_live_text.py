"""What live watchers hear of a reply that is begun again: that the text so far is void."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.errors import HandedOver
from support.fakes import spoken
from support.world import Died, World


def shown(world: World) -> list[str]:
    """The texts of the replies as a watcher puts them together, who follows the resets."""
    texts: dict[int, str] = {}
    for _, kind, data in world.events.seen:
        if kind == "model.delta":
            texts[data["step"]] = texts.get(data["step"], "") + data["text"]
        if kind == "model.reset":
            texts[data["step"]] = ""
    return [texts[step] for step in sorted(texts)]


def half_then(world: World, break_off) -> None:
    """The first request says half of its text and breaks off; the next one says all of it."""

    def streams(on_delta, on_reset):
        on_delta("the ")
        if len(world.models.prompts) == 1:
            break_off(on_reset)
        on_delta("end")

    world.models.script = lambda _: spoken("the end")
    world.models.streams = streams


def test_after_an_attempt_that_broke_off(world):
    """Of what came before the reset nothing is left."""
    half_then(world, lambda on_reset: on_reset())
    world.submit()
    world.run_dry()
    assert shown(world) == ["end"]


def test_after_a_worker_died_in_the_middle_of_a_text(world):
    def die(_):
        raise world.kill()

    half_then(world, die)
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()
    world.forget_the_dead()
    world.sweep(40)
    world.run_dry()

    assert shown(world) == ["the end"]
    assert world.row("turns")["disposition"] == "answered"


def test_after_a_worker_handed_the_call_over(world):
    def hand_over(_):
        raise HandedOver

    half_then(world, hand_over)
    world.submit()
    world.run_dry()
    assert shown(world) == ["the end"]


def test_a_reply_that_is_made_at_once_is_never_void(world):
    half_then(world, lambda _: None)
    world.submit()
    world.run_dry()
    assert "model.reset" not in [kind for _, kind, _ in world.events.seen]
