"""A runtime whose clock is ours: real SQL, real stages, and models and tools that nobody ever calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, cast

from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.leases import LeaseRules
from chordage.orchestrator.gateways.no_redis import NoEvents, NoLocks
from chordage.orchestrator.gateways.ports import Models, Tools
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store.database import Store
from chordage.workers.simulate.scenario import Scenario

EPOCH = datetime(2030, 1, 7, tzinfo=UTC)
NEVER = 10 * 365 * 86_400.0  # seconds of a lease: workers that are simulated do not die


@dataclass(slots=True)
class Clock:
    now: float = 0.0  # virtual seconds since the start

    def __call__(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now)


@dataclass(slots=True)
class Ids:
    """Ids that grow, and are the same in every simulation of a scenario."""

    _count: Any = field(default_factory=lambda: itertools.count(1))

    def __call__(self) -> str:
        return f"{next(self._count):016d}"


class AnyAgent:
    """Every name is an agent: what agents are plays no part here."""

    def get(self, name: str | None) -> AgentSpec:
        return replace(_AGENT, name=name or _AGENT.name)

    def names(self) -> list[str]:
        return []


_AGENT = AgentSpec(name="simulated", model="none:none")


class _Nobody:
    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        raise AssertionError(f"a simulation calls no model and no tool, but {name!r} was asked for")


def runtime_for(scenario: Scenario, store: Store, clock: Clock) -> Runtime:
    return Runtime(
        store=store,
        agents=AnyAgent(),
        models=cast("Models", _Nobody()),
        tools=cast("Tools", _Nobody()),
        locks=NoLocks(),
        events=NoEvents(),
        clock=clock,
        new_id=Ids(),
        worker="simulation",
        budgets=scenario.all_budgets,
        leases=LeaseRules(seconds=NEVER),
    )
