"""One line of the log for each turn that has ended, at INFO, with what an operator counts; and none for ticks."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
import structlog
from structlog.testing import capture_logs

from chordage.orchestrator import stages
from chordage.orchestrator.core.model import Reply, StopReason, Usage
from chordage.orchestrator.loops import pulse
from support.busy_thread import a_round_then_user_texts, in_the_first_call, steer
from support.fakes import rounds_of, spoken
from support.world import World


@pytest.fixture
def log_lines(quiet):
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with capture_logs() as lines:
        yield lines


@pytest.fixture
def lines(log_lines):
    return lambda: [line for line in log_lines if line["event"] == "turn ended"]


def costing(prompt) -> Reply:
    asked = rounds_of(2)(prompt)
    return Reply(
        text=asked.text, asks=asked.asks, stop=asked.stop, model="m", usage=Usage(input_tokens=10, output_tokens=3)
    )


def test_answered_turn_is_logged_with_its_ids_duration_rounds_and_tokens(world: World, lines) -> None:
    world.models.script = costing
    turn = world.submit(thread="customer-4")
    world.clock.pass_by(2)
    world.run_dry()

    (line,) = lines()
    run = world.row("runs")
    expected = {
        "turn": turn, "run": run["id"], "thread": "customer-4", "agent": run["agent"], "disposition": "answered",
        "code": None, "rounds": 1, "input_tokens": run["input_tokens"], "output_tokens": run["output_tokens"],
        "log_level": "info",
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert line["input_tokens"] == 20
    assert line["seconds"] >= 0


def test_failed_turn_is_logged_with_its_code(world: World, lines) -> None:
    world.models.script = lambda prompt: Reply(text="", asks=(), stop=StopReason.REFUSAL, model="m")
    world.submit()
    world.run_dry()

    (line,) = lines()
    run = world.row("runs")
    assert (line["disposition"], line["code"]) == (world.row("turns")["disposition"], run["code"])


@pytest.mark.parametrize("started", [True, False], ids=["at work", "queued"])
def test_cancelled_turn_is_logged_once(world: World, lines, started) -> None:
    world.models.script = rounds_of(1)
    turn = world.submit()
    if started:
        world.deliver(world.pending.pop())
        assert world.row("turns")["status"] == "active"
    stages.cancel_turn(world.runtime, turn)
    stages.cancel_turn(world.runtime, turn)
    world.run_dry()

    assert [(line["turn"], line["disposition"]) for line in lines()] == [(turn, "cancelled")]


def test_turns_that_never_had_a_run_are_logged_too(world: World, lines) -> None:
    world.models.script = lambda prompt: spoken("ok")
    now = world.clock.now
    gone = world.submit(thread="a", not_before=now + timedelta(seconds=60), deadline=now + timedelta(seconds=90))
    older = world.submit("old", thread="b", coalesce_key="k")
    newer = world.submit("new", thread="b", coalesce_key="k")
    world.sweep(seconds=100)
    world.run_dry()

    log_lines = {line["turn"]: line["disposition"] for line in lines()}
    assert log_lines == {gone: "expired", older: "merged", newer: "answered"}
    assert len(lines()) == len(log_lines)


def test_steered_message_is_logged_with_the_run_that_absorbed_it(world: World, lines) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: steer(world, "mind this"))
    world.submit("do it")
    world.run_dry()

    assert sorted(line["disposition"] for line in lines()) == ["answered", "steered"]
    assert {line["run"] for line in lines()} == {world.row("runs")["id"]}


def test_sweeps_pulse_and_projection_log_nothing(world: World, log_lines) -> None:
    for _ in range(3):
        world.sweep(seconds=5)
        pulse.tick(world.runtime)
        stages.project(world.runtime)

    assert log_lines == []
