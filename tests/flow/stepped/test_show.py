"""`chordage show` tells what the consumer of a run has done with it."""

from __future__ import annotations

import json

from chordage.orchestrator import views
from chordage.orchestrator.core.stepping import Control
from chordage.workers.cli.output import plain
from chordage.workers.cli.show import run_lines, stepped_lines
from support.driving import USER, Consumer, asks, consume, text


def lines(it: Consumer) -> list[str]:
    """Without the moments."""
    shown = it.look()
    found = list(run_lines(views.run(it.world.store, shown.run_id))) if shown.run_id else []
    return [*found, *stepped_lines(views.driven(it.world.store, it.turn))]


def has(it: Consumer, *parts: str) -> None:
    shown = lines(it)
    for part in parts:
        assert any(part in line for line in shown), f"{part!r} is not in\n" + "\n".join(shown)


def test_timeline_shows_pushed_and_steered_messages(world):
    it = consume(world, text("R"), asks("a"), text("done"))
    it.next()
    it.push(it.link, USER)
    it.next()
    it.do("steer", text="S")
    it.do("run")

    has(
        it,
        "pushed  by its consumer, 2 messages",
        "     the held reply: R",
        "     user: U",
        "by its consumer, ",
    )
    assert "     S" in lines(it)


def test_timeline_marks_a_replaced_history_and_a_dropped_reply(world):
    it = consume(world, text("dropped words"), text("done"))
    it.next()
    it.do("params", params={}, messages=[USER])
    it.do("run")

    has(it, "1 message, in place of the whole history", ", not appended", "     dropped words")


def test_pending_request_is_shown_with_its_params_and_the_settings_of_calls(world):
    it = consume(world, asks("a", "b", "c"), max_iterations=5)
    it.next()
    it.do("params", params={"temperature": 0})
    it.do("options", options={"model_timeout": 9})
    it.do("tool_results", results=[{"ask_id": "a", "content": "mine"}])
    it.do("decide", ask_id="b", allow=False, reason="no")
    it.do("hold", ask_ids=["c"])
    it.do("steer", text="S")

    has(
        it, "driven by its consumer: held, drive step, 1 of 5 requests answered, rev ", 'params  {"temperature": 0}',
        'options {"model_timeout": 9}', "call    a: has a result of its consumer's: mine", "call    b: denied: no",
        "call    c: held back", "pending behind the results, S",
    )  # fmt: skip
    it.do("next")
    has(it, "pure  succeeded (client_supplied)", "said   mine")


def test_a_turn_that_queues_shows_what_waits_to_become_history(world):
    world.submit("first")
    it = Consumer(world, world.submit(control=Control.STEP))
    world.step(it.turn, "messages", messages=[USER])

    has(it, "driven by its consumer: queued", "pending user: U")


def test_all_of_it_is_in_the_json(world):
    it = consume(world, text("R"), text("done"))
    it.next()
    it.push(USER)
    it.do("run")
    shown = views.run(world.store, it.look().run_id)

    told = json.loads(json.dumps({"run": shown, "driven": views.driven(world.store, it.turn)}, default=plain))
    assert [step["kind"] for step in told["run"]["steps"]] == ["inference", "pushed", "inference"]
    assert told["run"]["steps"][1]["messages"] == [USER]
    assert told["driven"]["standing"] == "done"


def test_turn_without_a_consumer_shows_no_stepping(world):
    turn = world.submit()
    world.run_dry()

    assert views.driven(world.store, turn) is None
