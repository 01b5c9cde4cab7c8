"""The fleet under virtual time: events in order, slots that are taken and freed, and real stages in between.

All decisions are made by the engine's own code on a real database: which turn is admitted, starts, or is next. Only
what takes time is simulated: the queues of the broker, the slots of the workers, model calls, tool calls, and the wait
for a row that another transaction has locked.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NoReturn, TypeVar, cast

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.agent_versions import AgentVersion, version_of
from chordage.orchestrator.core.errors import QueueFull
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CallModel, Dispatch, Intent
from chordage.orchestrator.core.leases import LeaseRules
from chordage.orchestrator.core.placement import STAY, Duration, PlacedCall, RoundPlan, noted, place
from chordage.orchestrator.core.reasons import NATURAL_END
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.gateways.absent import NoEvents, NoLocks
from chordage.orchestrator.gateways.ports import Models, Tools
from chordage.orchestrator.run import endings
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.store.runs import RunClaim
from chordage.workers.simulate.result import Measurements
from chordage.workers.simulate.scenario import MessageGenerator, MessageSource, Scenario, TurnWork, arrival_times

EPOCH = datetime(2030, 1, 7, tzinfo=UTC)
NEVER = 10 * 365 * 86_400.0  # seconds of a lease: simulated workers do not die
SWEEP = 5.0
READ_PART = 0.25  # of a commit: what a wake-up takes that starts nothing

Job = Callable[[], None]
J = TypeVar("J")


@dataclass(slots=True)
class _Turn:
    """An admitted turn: its work, and how much of it is done."""

    work: TurnWork
    came: float
    run: Run | None = None
    model_calls: int = 0
    open_calls: int = 0  # of its round


class VirtualFleet:
    def __init__(
        self, scenario: Scenario, rt: Runtime, clock: VirtualClock, *, progress: Callable[[float, int], None]
    ) -> None:
        self.measured = Measurements()
        self.turn_slots: Slots[Job] = Slots(scenario.fleet.turn_slots, reserve=scenario.fleet.reserve)
        self.tool_slots: Slots[Job] = Slots(scenario.fleet.tool_slots, reserve=scenario.fleet.reserve)
        self.done = 0
        self._scenario = scenario
        self._rt = rt
        self._clock = clock
        self._progress = progress
        self._commit = scenario.database.commit_ms / 1000
        self._order = itertools.count()
        self._events: list[tuple[float, int, Job]] = []
        self._turns: dict[str, _Turn] = {}
        self._row_free: dict[str, float] = {}
        self._durations: dict[str, Duration] = {}  # of the tools of each source

    def run(self) -> None:
        for source in self._scenario.sources:
            messages = MessageGenerator(source, self._scenario.seed)
            self._schedule_messages(
                source, messages, arrival_times(source, self._scenario.seconds, self._scenario.seed)
            )
        self._at(SWEEP, self._sweep)
        until = self._scenario.seconds + self._scenario.drain
        with self.measured.counting():
            while self._events and self._events[0][0] <= until:
                self._clock.now, _, job = heapq.heappop(self._events)
                job()
                self._start_jobs()

    def _at(self, when: float, job: Job) -> None:
        heapq.heappush(self._events, (when, next(self._order), job))

    def _after(self, seconds: float, job: Job) -> None:
        self._at(self._clock.now + seconds, job)

    def _start_jobs(self) -> None:
        """A started job may free a slot at once; then the next one starts too."""
        while jobs := [*self.turn_slots.take(), *self.tool_slots.take()]:
            for job in jobs:
                job()

    def _wait_for_row(self, row: str) -> float:
        """How long until our commit is done, behind all others that locked the row."""
        now = self._clock.now
        begins = max(now, self._row_free.get(row, 0.0))
        self._row_free[row] = begins + self._commit
        self.measured.lock(row, now, begins - now)
        return begins + self._commit - now

    # Messages

    def _schedule_messages(self, source: MessageSource, messages: MessageGenerator, times: Iterable[float]) -> None:
        times_left = iter(times)

        def admit_next() -> None:
            self._admit(source, messages)
            self._schedule_next(times_left, admit_next)

        self._schedule_next(times_left, admit_next)

    def _schedule_next(self, times_left: Iterable[float], job: Job) -> None:
        for at in times_left:
            self._at(at, job)
            return

    def _admit(self, source: MessageSource, messages: MessageGenerator) -> None:
        request, work = messages.next()
        self.measured.came[source.group] += 1
        try:
            with self.measured.cost_of("admission"):
                admitted, intents = stages.admit(self._rt, request)
        except QueueFull:
            self.measured.refused[source.group] += 1
            return
        self._turns[admitted.turn_id] = _Turn(work=work, came=self._clock.now)
        self._after(self._wait_for_row(f"threads {admitted.thread_id}"), lambda: self._send(intents))

    # Wake-ups

    def _send(self, intents: Iterable[Intent]) -> None:
        for intent in intents:
            match intent:
                case Dispatch(group=group):
                    self.turn_slots.put(group, lambda intent=intent: self._dispatch(intent))  # type: ignore[misc]
                case _:
                    raise AssertionError(f"the simulation does not follow {intent}")

    def _sweep(self) -> None:
        """Repeated as long as there are events, or a sweep makes some."""
        self._progress(self._clock.now, self.done)
        with self.measured.cost_of("sweep"):
            intents = stages.rescue(self._rt)
        self._send(intents)
        if intents or self._events:
            self._after(SWEEP, self._sweep)

    def _dispatch(self, intent: Dispatch) -> None:
        with self.measured.cost_of("dispatch"):
            intents = stages.dispatch(self._rt, intent.group, intent.hint)
        started = [intent.seen for intent in intents if isinstance(intent, CallModel) and intent.seen is not None]
        self._send(intent for intent in intents if not isinstance(intent, CallModel))
        if not started:
            self.measured.in_vain += 1
            self._after(self._commit * READ_PART, self.turn_slots.free_one)
            return
        (run,) = started
        turn = self._turns[run.turn_id]
        turn.run = run
        self._after(self._wait_for_row(f"groups {run.group}"), lambda: self._started(turn))

    # Turns

    def _started(self, turn: _Turn) -> None:
        waited = self._clock.now - turn.came
        self.measured.until_started[turn.work.group].append(waited)
        self.measured.of_tenant[turn.work.tenant].append(waited)
        self._call_model(turn)

    def _call_model(self, turn: _Turn) -> None:
        """In the slot the turn already has."""
        if turn.model_calls == 0:
            self.measured.until_asked[turn.work.group].append(self._clock.now - turn.came)
        seconds = turn.work.models[turn.model_calls]
        turn.model_calls += 1
        self._after(seconds, lambda: self._reply(turn))

    def _reply(self, turn: _Turn) -> None:
        if turn.model_calls > len(turn.work.rounds):
            self._end(turn)
            return
        seconds = turn.work.rounds[turn.model_calls - 1]
        turn.open_calls = len(seconds)
        plan = self._place(turn.work, len(seconds))
        for batch in plan.batches:
            self._send_calls(turn, [seconds[int(call)] for call in batch])
        if plan.here:
            self._carry_out_here(turn, [seconds[int(call)] for call in plan.here])
        else:
            self.turn_slots.free_one()

    # Rounds

    def _place(self, work: TurnWork, calls: int) -> RoundPlan:
        """By the rules of the engine, and by how long the calls of this source took so far."""
        known = self._durations.get(work.source)
        asked = [
            PlacedCall(id=str(number), effect=work.effect, wish=work.placement, duration=known)
            for number in range(calls)
        ]
        plan = place(asked)
        self.measured.placed[work.group].update(why.partition(":")[0] for why in plan.why.values())
        return plan

    def _send_calls(self, turn: _Turn, seconds: Sequence[float]) -> None:
        """In one message."""
        self.measured.messages[turn.work.group] += 1
        self.tool_slots.put(turn.work.group, lambda: self._after(sum(seconds), lambda: self._batch_done(turn, seconds)))

    def _send_each(self, turn: _Turn, seconds: Sequence[float]) -> None:
        for of in seconds:
            self._send_calls(turn, [of])

    def _batch_done(self, turn: _Turn, seconds: Sequence[float]) -> None:
        self.tool_slots.free_one()
        self._settle(turn, seconds)
        if not turn.open_calls:  # back to the queue of its group: here chat goes before chores
            self.turn_slots.put(turn.work.group, lambda: self._call_model(turn))

    def _carry_out_here(self, turn: _Turn, seconds: Sequence[float]) -> None:
        """In the slot of the turn. After the bound no call begins: the rest is sent."""
        began = list(itertools.accumulate(seconds, initial=0.0))
        staying = [of for of, at in zip(seconds, began, strict=False) if at < STAY]
        if rest := seconds[len(staying) :]:
            self._after(STAY, lambda: self._send_each(turn, rest))
        self._after(sum(staying), lambda: self._here_done(turn, staying))

    def _here_done(self, turn: _Turn, seconds: Sequence[float]) -> None:
        self._settle(turn, seconds)
        if not turn.open_calls and turn.work.group is Group.CHAT:
            self._call_model(turn)
            return
        self.turn_slots.free_one()
        if not turn.open_calls:
            self.turn_slots.put(turn.work.group, lambda: self._call_model(turn))

    def _settle(self, turn: _Turn, seconds: Sequence[float]) -> None:
        turn.open_calls -= len(seconds)
        for of in seconds:
            self._durations[turn.work.source] = noted(self._durations.get(turn.work.source), of)

    def _end(self, turn: _Turn) -> None:
        run = turn.run
        assert run is not None
        with self.measured.cost_of("end"):
            intents = endings.end_here(self._rt, RunClaim(run=run, step=run.step, token=None), NATURAL_END)
        self.done += 1
        self.measured.until_done[turn.work.group].append(self._clock.now - turn.came)
        del self._turns[run.turn_id]
        self._after(self._commit, lambda: self._release(intents))

    def _release(self, intents: Iterable[Intent]) -> None:
        self.turn_slots.free_one()
        self._send(intents)


class Slots(Generic[J]):
    """The slots of a fleet and the queues before them, served in strict order of the groups as workers serve theirs.

    `reserve` of them are for chat only; those are used last.
    """

    def __init__(self, size: int, *, reserve: int = 0) -> None:
        self.size = size
        self.free = size
        self._reserve = reserve
        self._queues: dict[Group, deque[J]] = {group: deque() for group in Group}
        self.longest = dict.fromkeys(Group, 0)

    def put(self, group: Group, job: J) -> None:
        queue = self._queues[group]
        queue.append(job)
        self.longest[group] = max(self.longest[group], len(queue))

    def free_one(self) -> None:
        self.free += 1

    def take(self) -> Iterator[J]:
        """The jobs that can start now, each with a slot of its own."""
        for group, queue in self._queues.items():
            keep = 0 if group is Group.CHAT else self._reserve
            while queue and self.free > keep:
                self.free -= 1
                yield queue.popleft()


@dataclass(slots=True)
class VirtualClock:
    now: float = 0.0  # virtual seconds since the start

    def __call__(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now)


@dataclass(slots=True)
class SequentialIds:
    """Ids that grow, and are the same in every simulation of a scenario."""

    _count: Any = field(default_factory=lambda: itertools.count(1))

    def __call__(self) -> str:
        return f"{next(self._count):016d}"


class AnyAgent:
    """Every name is an agent: the simulation does not depend on what agents are."""

    def get(self, name: str | None) -> AgentSpec:
        return replace(_AGENT, name=name or _AGENT.name)

    def names(self) -> list[str]:
        return []

    def version(self, agent: AgentSpec) -> AgentVersion:
        return version_of(agent.name, {})

    def digests(self) -> dict[str, str]:
        return {}


_AGENT = AgentSpec(name="simulated", model="none:none")


class _Uncalled:
    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        raise AssertionError(f"a simulation calls no model and no tool, but {name!r} was called")


def runtime_for(scenario: Scenario, store: Store, clock: VirtualClock) -> Runtime:
    return Runtime(
        store=store,
        agents=AnyAgent(),
        models=cast("Models", _Uncalled()),
        tools=cast("Tools", _Uncalled()),
        locks=NoLocks(),
        events=NoEvents(),
        clock=clock,
        new_id=SequentialIds(),
        worker="simulation",
        budgets=scenario.all_budgets,
        leases=LeaseRules(seconds=NEVER),
    )
