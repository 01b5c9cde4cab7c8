"""What live watchers hear of a reply that is begun again: that the text and the reasoning so far are void."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.errors import HandedOver
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.run_events import RunEvent, without_texts
from chordage.orchestrator.views.run_events import BEGINNING
from support.fakes import spoken
from support.world import Died, World


def shown(world: World, shows: str = "model.delta") -> list[str]:
    """The texts of the replies as a watcher puts them together, who follows the resets."""
    texts: dict[int, str] = {}
    for _, kind, data in world.events.seen:
        if kind == shows:
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


def thinking(world: World) -> None:
    """The model reasons in three pieces, and says one word."""

    def think(on_reasoning):
        for piece in ("so ", "it ", "is"):
            on_reasoning(piece)

    world.models.thinks = think
    world.models.streams = lambda on_delta, _: on_delta("yes")
    world.models.script = lambda _: replace(spoken("yes"), reasoning="so it is")


def test_after_a_worker_died_in_the_middle_of_its_reasoning(world):
    thinking(world)
    whole = world.models.thinks

    def die(on_reasoning):
        on_reasoning("so ")
        raise world.kill()

    world.models.thinks = die
    world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.models.thinks = whole
    world.pending.clear()
    world.forget_the_dead()
    world.sweep(40)
    world.run_dry()

    pieces = [(data["attempt"], data["offset"]) for _, kind, data in world.events.seen if kind == "model.reasoning"]
    assert shown(world, "model.reasoning") == ["so it is"]
    assert [offset for _, offset in pieces] == [0, 0, 3, 6]
    assert pieces[0][0] < pieces[1][0] == pieces[3][0], "another attempt"
    assert world.row("turns")["disposition"] == "answered"


def test_reasoning_of_an_attempt_that_broke_off_is_not_before_the_next(world):
    told = []

    def streams(on_delta, on_reset):
        on_reset()
        told[-1]("so")
        on_delta("yes")

    def think(on_reasoning):
        told.append(on_reasoning)
        on_reasoning("not ")

    world.models.thinks, world.models.streams = think, streams
    world.submit()
    world.run_dry()
    thoughts = [data for _, kind, data in world.events.seen if kind == "model.reasoning" and data["step"] == 1]
    delta = next(data for _, kind, data in world.events.seen if kind == "model.delta")

    assert [(data["offset"], data["so_far"](9)) for data in thoughts] == [(0, "not "), (0, "so")]
    assert delta["thought"]() == "so"


def test_reasoning_is_on_record_with_its_reply_and_sent_to_no_model(world):
    thinking(world)
    world.submit()
    world.run_dry()
    world.submit("and now?")
    world.run_dry()

    replies = world.rows("journal", kind=Checkpoint.ASSISTANT_TURN.value)
    assert [row["body"]["reasoning"] for row in replies] == ["so it is"] * 2
    assert "so it is" not in repr(world.models.prompts[-1])
    step = views.run(world.store, world.rows("runs")[0]["id"]).steps[0]
    assert (step.text, step.reasoning) == ("yes", "so it is")


def test_a_reply_without_reasoning_says_nothing_of_it(world):
    half_then(world, lambda _: None)
    world.submit()
    world.run_dry()

    assert "reasoning" not in world.row("journal", kind=Checkpoint.ASSISTANT_TURN.value)["body"]
    assert all("thought" not in data for _, _, data in world.events.seen)


def test_reasoning_of_a_reply_is_in_its_event_and_hidden_with_the_texts(world):
    thinking(world)
    world.submit()
    world.run_dry()
    events = views.run_events(world.store, world.row("runs")["id"], BEGINNING, 10**9).events
    (replied,) = [event for event in events if event.kind == "model.replied"]
    piece = RunEvent(id=None, kind="live.reasoning", step=1, data={"text": "so "})

    assert replied.data["reasoning"] == "so it is"
    assert "so it is" not in repr(without_texts(replied))
    assert without_texts(piece) is None
