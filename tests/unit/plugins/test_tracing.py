"""One line per phase, and spans where OpenTelemetry is."""

from __future__ import annotations

import importlib
import sys

import pytest
import structlog

from chordage.orchestrator.core.model import Attempt, Fault, Reply, StopReason, Usage
from chordage.orchestrator.core.phases import Hook, ModelError, Resumed, ShownOutcome
from chordage.orchestrator.core.reasons import stopped
from chordage.orchestrator.plugins.base import OptionRefused
from chordage.orchestrator.plugins.plugin_set import PluginSet
from chordage.orchestrator.plugins.tracing import Tracing

ATTEMPTS = (Attempt(model="m", seconds=1.5, fault=Fault.SERVER), Attempt(model="m", seconds=0.5))
REPLY = Reply(text="", asks=(), stop=StopReason.END, model="m", attempts=ATTEMPTS, usage=Usage(input_tokens=7))


@pytest.fixture
def line(moment):
    def ask(hook, **given):
        with structlog.testing.capture_logs() as lines:
            assert PluginSet([Tracing(spans=False)]).ask(hook, moment(hook, step=3, **given)) == []
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


class Tracer:
    def __init__(self):
        self.spans = []

    def start_span(self, name, *, attributes, start_time):
        span = Span(name, attributes, start_time)
        self.spans.append(span)
        return span


class Span:
    def __init__(self, name, attributes, start):
        self.name, self.attributes, self.start, self.ended = name, attributes, start, None

    def end(self, *, end_time):
        self.ended = end_time

    @property
    def seconds(self):
        return (self.ended - self.start) / 1e9


@pytest.fixture
def tracer(monkeypatch):
    """In the place of OpenTelemetry, whether that is installed or not."""
    tracer = Tracer()
    module = type(sys)("opentelemetry.trace")
    module.get_tracer = lambda _name: tracer
    monkeypatch.setitem(sys.modules, "opentelemetry", type(sys)("opentelemetry"))
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", module)
    return tracer


def test_models_tools_and_runs_are_spans_as_long_as_their_work(tracer, moment):
    plugins = PluginSet([Tracing()])
    plugins.ask(Hook.AFTER_INFERENCE, moment(Hook.AFTER_INFERENCE, reply=REPLY))
    plugins.ask(Hook.AFTER_TOOL_EXECUTE, moment(Hook.AFTER_TOOL_EXECUTE))
    plugins.ask(Hook.RUN_END, moment(Hook.RUN_END, elapsed=9.0))

    assert [(span.name, span.seconds) for span in tracer.spans] == [
        ("chat m", 2.0),
        ("execute_tool search", 0.5),
        ("invoke_agent ada", 9.0),
    ]
    assert tracer.spans[0].attributes["gen_ai.usage.input_tokens"] == 7
    assert tracer.spans[1].attributes["gen_ai.tool.name"] == "search"
    assert all(span.attributes["chordage.run_id"] == "r" for span in tracer.spans)
    assert all(value is not None for span in tracer.spans for value in span.attributes.values())


def test_a_failed_model_call_is_a_span_with_its_error(tracer, moment):
    error = ModelError(fault=Fault.AUTH, message="no", attempts=ATTEMPTS)
    PluginSet([Tracing()]).ask(Hook.AFTER_INFERENCE, moment(Hook.AFTER_INFERENCE, reply=None, error=error))

    (span,) = tracer.spans
    assert (span.name, span.attributes["error.type"]) == ("chat", "auth")


def test_a_call_that_never_ran_is_no_span(tracer, moment):
    blocked = ShownOutcome(content="no", code="blocked")
    PluginSet([Tracing()]).ask(Hook.AFTER_TOOL_EXECUTE, moment(Hook.AFTER_TOOL_EXECUTE, outcome=blocked))

    assert tracer.spans == []


@pytest.fixture
def without_opentelemetry(monkeypatch):
    def refused(_name):
        raise ImportError("not installed")

    monkeypatch.setattr(importlib, "import_module", refused)


def test_without_opentelemetry_there_are_lines_alone(without_opentelemetry, moment):
    with structlog.testing.capture_logs() as lines:
        PluginSet([Tracing()]).ask(Hook.RUN_END, moment(Hook.RUN_END))

    assert len(lines) == 1


def test_spans_that_cannot_be_had_are_refused(without_opentelemetry):
    with pytest.raises(OptionRefused, match=r"spans: OpenTelemetry is not installed; install chordage\[otel\]"):
        Tracing(spans=True)


def test_spans_are_had_or_not():
    with pytest.raises(OptionRefused, match="spans: must be true or false; got 'yes'"):
        Tracing(spans="yes")
