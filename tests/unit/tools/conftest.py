"""A tool box for functions that a test declares on the spot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.gateways.ports import CallOrder, ToolOutcome
from chordage.orchestrator.gateways.tools.declare import declared_on
from chordage.orchestrator.gateways.tools.toolbox import ToolBox

AGENT = AgentSpec(name="tester", model="none")


class Calm:
    """An abort that never comes. Notes how long it was asked to wait, and does not wait."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def check(self) -> None: ...

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)


class Bench:
    def __init__(self) -> None:
        self.calm = Calm()
        self.notes: list[str] = []

    def box(self, *functions: Callable[..., Any]) -> ToolBox:
        tools = {tool.name: tool for tool in map(declared_on, functions) if tool}
        return ToolBox(lambda agent: tools)

    def order(self, function: Callable[..., Any], **arguments: Any) -> CallOrder:
        return CallOrder(
            call_id="call-1",
            run_id="run-1",
            thread_id="thread-1",
            tool=declared_on(function).name,
            arguments=arguments,
            idempotency_key="key-1",
        )

    def call(self, function: Callable[..., Any], /, *, abort: Any = None, **arguments: Any) -> ToolOutcome:
        order = self.order(function, **arguments)
        return self.box(function).run(AGENT, order, abort=abort or self.calm, on_progress=self.notes.append)

    def spec(self, function: Callable[..., Any]) -> Any:
        (spec,) = self.box(function).specs(AGENT).values()
        return spec

    def complaints(self, function: Callable[..., Any], /, **arguments: Any) -> str | None:
        return self.box(function).invalid(AGENT, declared_on(function).name, arguments)


@pytest.fixture
def bench() -> Bench:
    return Bench()
