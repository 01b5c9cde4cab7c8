"""One line per phase."""

from __future__ import annotations

import pytest
import structlog

from chordage.orchestrator.core.model import Attempt, Fault, Reply, StopReason, Usage
from chordage.orchestrator.core.phases import Hook, ModelError, Resumed, ShownOutcome
from chordage.orchestrator.core.reasons import stopped
from chordage.orchestrator.plugins.plugin_set import PluginSet
from chordage.orchestrator.plugins.tracing import Tracing

ATTEMPTS = (Attempt(model="m", seconds=1.5, fault=Fault.SERVER), Attempt(model="m", seconds=0.5))
REPLY = Reply(text="", asks=(), stop=StopReason.END, model="m", attempts=ATTEMPTS, usage=Usage(input_tokens=7))


@pytest.fixture
def line(moment):
    def ask(hook, **given):
        with structlog.testing.capture_logs() as lines:
            assert PluginSet([Tracing()]).ask(hook, moment(hook, step=3, **given)) == []
        (found,) = lines
        return found

    return ask


@pytest.mark.parametrize("hook", Hook)
def test_every_phase_is_a_line_with_its_position(hook, line):
    found = line(hook)

    assert (found["event"], found["run"], found["thread"], found["agent"], found["step"]) == (
        hook.value, "r", "t", "ada", 3,
    )  # fmt: skip


def test_line_of_a_model_call_has_its_duration_and_reply(line):
    found = line(Hook.AFTER_INFERENCE, reply=REPLY)

    assert (found["seconds"], found["model"], found["stop"], found["asks"]) == (2.0, "m", "end", 0)
    assert "error" not in found


def test_line_of_a_failed_model_call_has_the_reason(line):
    error = ModelError(fault=Fault.AUTH, message="no", attempts=ATTEMPTS)

    for hook in (Hook.AFTER_INFERENCE, Hook.STEP_END):
        found = line(hook, reply=None, error=error)
        assert (found["seconds"], found["error"]) == (2.0, "auth")


def test_event_without_reply_and_error_is_logged_all_the_same(line):
    assert line(Hook.STEP_END, reply=None)["seconds"] == 0


def test_a_tool_call_is_named(line):
    before = line(Hook.BEFORE_TOOL_EXECUTE, resumed=Resumed())
    after = line(Hook.AFTER_TOOL_EXECUTE, outcome=ShownOutcome(content="no", code="timed_out", seconds=60))

    assert (before["call"], before["tool"], before["resumed"]) == ("c", "search", True)
    assert (after["call"], after["tool"], after["code"], after["seconds"]) == ("c", "search", "timed_out", 60)


def test_line_of_the_end_of_a_run_has_its_reason(line):
    found = line(Hook.RUN_END, ending=stopped("timeout", "too long"), elapsed=12.5)

    assert (found["reason"], found["code"], found["seconds"]) == ("stopped", "timeout", 12.5)
