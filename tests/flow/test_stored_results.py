"""A result that is too long for the model: it is given the beginning, and reads on in parts."""

from __future__ import annotations

import pytest

from chordage import tool
from chordage.orchestrator import views
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.gateways.tools.declare import declared_on
from chordage.orchestrator.gateways.tools.outcomes import READER
from chordage.orchestrator.gateways.tools.toolbox import ToolBox
from support.fakes import asking, spoken
from support.invariants import check_all
from support.world import World

LONG = "".join(f"line {number}: ü€\n" for number in range(5_000))


@tool(effect="pure", result_limit=100)
def report() -> str:
    """A long report."""
    return LONG


@pytest.fixture
def reading(world: World) -> World:
    box = ToolBox(lambda agent: {"report": declared_on(report)})
    object.__setattr__(world.runtime, "tools", box)
    return world


def play(world: World, *replies, **submitted) -> views.TurnView:
    left = iter(replies)
    world.models.script = lambda prompt: next_of(left, prompt)
    turn = world.submit(**submitted)
    world.run_dry()
    return views.turn(world.store, turn)


def next_of(left, prompt):
    made = next(left)
    return made(prompt) if callable(made) else made


def reads(call: str, **more):
    return asking((READER, {"call": call, **more}), ids=("read",))


def offers(prompt) -> set[str]:
    return {offer.name for offer in prompt.offers}


def test_model_is_offered_to_read_on_once_it_got_a_beginning(reading):
    play(reading, asking(("report", {})), lambda _: reads(reading.rows("calls")[0]["id"], offset=100), spoken("ok"))

    first, second, third = reading.models.prompts
    assert (offers(first), offers(second)) == ({"report"}, {"report", READER})
    told = third.said[-1].content
    assert told.startswith(f"[Characters 100 to 20100 of {len(LONG)}; read on from offset 20100]\n{LONG[100:200]}")
    assert told.endswith(LONG[20_000:20_100])
    assert "The whole result is kept" not in told, "a part is no preview itself"
    check_all(reading.store)


def test_the_parts_put_together_are_the_whole(reading):
    play(reading, asking(("report", {})), spoken("ok"))
    call = reading.row("calls")["id"]
    text, offset = "", 0
    while offset is not None:
        part = views.result(reading.store, call, offset=offset, limit=7_777)
        assert len(part.text) <= 7_777
        text, offset = text + part.text, part.next_offset
    assert (text, part.total) == (LONG, len(LONG))
    assert "".join(one.text for one in views.result_parts(reading.store, call)) == LONG


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"offset": -1}, "offset must be 0 or more"),
        ({"length": 0}, "length 1 to 20000"),
        ({"length": 20_001}, "length 1 to 20000"),
    ],
)
def test_a_part_that_cannot_be_is_refused_with_what_can(reading, arguments, why):
    play(reading, asking(("report", {})), lambda _: reads(reading.rows("calls")[0]["id"], **arguments), spoken("ok"))
    assert why in reading.models.prompts[-1].said[-1].content


def test_beyond_the_end_there_is_nothing(reading):
    play(reading, asking(("report", {})), lambda _: reads(reading.rows("calls")[0]["id"], offset=10**6), spoken("ok"))
    assert reading.models.prompts[-1].said[-1].content.startswith("[Characters 1000000 to 1000000 of")


def test_only_results_of_its_own_thread_can_be_read(reading):
    play(reading, asking(("report", {})), spoken("ok"), thread="theirs")
    other = reading.row("calls")["id"]
    play(reading, asking(("report", {})), lambda _: reads(f"call:{other}"), lambda _: reads("nonsense"), spoken("ok"))

    refused = [call["content"] for call in reading.rows("calls", tool=READER)]
    assert all("there is no result of a call" in content for content in refused)
    assert len(refused) == 2


def test_missing_result_is_reported(reading):
    with pytest.raises(NotFound, match="call 'gone' is not there"):
        views.result(reading.store, "gone")


def test_a_caller_reads_only_results_of_its_own_threads(world):
    world.submit(thread="tg:2")
    world.run_dry()
    call = world.rows("calls")[0]["id"]
    assert views.result(world.store, call).text == "pure0"
    with pytest.raises(NotFound, match="is not there"):
        views.result(world.store, call, space="api")


def test_a_call_that_has_not_ended_has_no_result_yet(world):
    def look(order):
        with pytest.raises(NotFound, match="has no result yet"):
            views.result(world.store, order.call_id)

    world.tools.before = look
    world.submit()
    world.run_dry()
    assert world.tools.ran.total() == 2


def test_a_short_result_is_read_as_it_is(world):
    world.submit()
    world.run_dry()
    found = views.result(world.store, world.rows("calls")[0]["id"], offset=1)
    assert (found.text, found.total, found.next_offset, found.status) == ("ure0", 5, None, "succeeded")
    assert views.shortened_results(world.store, found.run_id) == []
