"""The fleet under virtual time: events in order, slots that are taken and given back, and real stages in between.

What the engine decides is the engine's own code on a real database: who is admitted, who starts, who is next. Only what
takes time is made up: the queues of the broker, the slots of the workers, model calls, tool calls, and the wait for a
row that another transaction has locked.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import QueueFull
from chordage.orchestrator.core.intents import CallModel, Dispatch, Intent
from chordage.orchestrator.core.reasons import NATURAL_END
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.run import endings
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store.runs import RunClaim
from chordage.workers.simulate import arrivals
from chordage.workers.simulate.arrivals import Mouth, Work
from chordage.workers.simulate.engine import Clock
from chordage.workers.simulate.ledger import Ledger
from chordage.workers.simulate.scenario import Scenario, Source
from chordage.workers.simulate.slots import Slots

SWEEP = 5.0
READ_PART = 0.25  # of a commit: what a wake-up takes that starts nothing

Job = Callable[[], None]


@dataclass(slots=True)
class _Turn:
    """A turn that is there: what it makes to do, and how far it has come."""

    work: Work
    came: float
    run: Run | None = None
    model_calls: int = 0
    tools_out: int = 0


class VirtualFleet:
    def __init__(self, scenario: Scenario, rt: Runtime, clock: Clock, *, tell: Callable[[float, int], None]) -> None:
        self.ledger = Ledger()
        self.turn_slots: Slots[Job] = Slots(scenario.fleet.turn_slots, reserve=scenario.fleet.reserve)
        self.tool_slots: Slots[Job] = Slots(scenario.fleet.tool_slots, reserve=scenario.fleet.reserve)
        self.done = 0
        self._scenario = scenario
        self._rt = rt
        self._clock = clock
        self._tell = tell
        self._commit = scenario.database.commit_ms / 1000
        self._order = itertools.count()
        self._events: list[tuple[float, int, Job]] = []
        self._turns: dict[str, _Turn] = {}
        self._row_free: dict[str, float] = {}

    def run(self) -> None:
        for source in self._scenario.sources:
            mouth = Mouth(source, self._scenario.seed)
            self._listen(source, mouth, arrivals.times(source, self._scenario.seconds, self._scenario.seed))
        self._at(SWEEP, self._sweep)
        until = self._scenario.seconds + self._scenario.drain
        with self.ledger.counting():
            while self._events and self._events[0][0] <= until:
                self._clock.now, _, job = heapq.heappop(self._events)
                job()
                self._begin_what_may()

    def _at(self, when: float, job: Job) -> None:
        heapq.heappush(self._events, (when, next(self._order), job))

    def _after(self, seconds: float, job: Job) -> None:
        self._at(self._clock.now + seconds, job)

    def _begin_what_may(self) -> None:
        """What begins may leave further work behind; that may begin at once too."""
        while jobs := [*self.turn_slots.take(), *self.tool_slots.take()]:
            for job in jobs:
                job()

    def _wait_for_row(self, row: str) -> float:
        """How long until our commit is through, behind all others that locked the row. It is ours from then on."""
        now = self._clock.now
        begins = max(now, self._row_free.get(row, 0.0))
        self._row_free[row] = begins + self._commit
        self.ledger.lock(row, now, begins - now)
        return begins + self._commit - now

    # Messages come.

    def _listen(self, source: Source, mouth: Mouth, times: Iterable[float]) -> None:
        coming = iter(times)

        def next_one() -> None:
            self._admit(source, mouth)
            self._expect(coming, next_one)

        self._expect(coming, next_one)

    def _expect(self, coming: Iterable[float], job: Job) -> None:
        for at in coming:
            self._at(at, job)
            return

    def _admit(self, source: Source, mouth: Mouth) -> None:
        request, work = mouth.next()
        self.ledger.came[source.group] += 1
        try:
            with self.ledger.cost_of("admission"):
                admitted, intents = stages.admit(self._rt, request)
        except QueueFull:
            self.ledger.refused[source.group] += 1
            return
        self._turns[admitted.turn_id] = _Turn(work=work, came=self._clock.now)
        self._after(self._wait_for_row(f"threads {admitted.thread_id}"), lambda: self._send(intents))

    # Wake-ups.

    def _send(self, intents: Iterable[Intent]) -> None:
        for intent in intents:
            match intent:
                case Dispatch(group=group):
                    self.turn_slots.put(group, lambda intent=intent: self._dispatch(intent))  # type: ignore[misc]
                case _:
                    raise AssertionError(f"nobody is there for {intent}")

    def _sweep(self) -> None:
        """As long as there is anything that moves, or a sweep sets it in motion."""
        self._tell(self._clock.now, self.done)
        with self.ledger.cost_of("sweep"):
            found = stages.rescue(self._rt)
        self._send(found)
        if found or self._events:
            self._after(SWEEP, self._sweep)

    def _dispatch(self, intent: Dispatch) -> None:
        with self.ledger.cost_of("dispatch"):
            intents = stages.dispatch(self._rt, intent.group, intent.hint)
        started = [one.seen for one in intents if isinstance(one, CallModel) and one.seen is not None]
        self._send(one for one in intents if not isinstance(one, CallModel))
        if not started:
            self.ledger.in_vain += 1
            self._after(self._commit * READ_PART, self.turn_slots.give_back)
            return
        (run,) = started
        turn = self._turns[run.turn_id]
        turn.run = run
        self._after(self._wait_for_row(f"groups {run.group}"), lambda: self._started(turn))

    # A turn runs.

    def _started(self, turn: _Turn) -> None:
        waited = self._clock.now - turn.came
        self.ledger.until_started[turn.work.group].append(waited)
        self.ledger.of_tenant[turn.work.tenant].append(waited)
        self._ask_model(turn)

    def _ask_model(self, turn: _Turn) -> None:
        """In a slot that is ours already."""
        if turn.model_calls == 0:
            self.ledger.until_asked[turn.work.group].append(self._clock.now - turn.came)
        seconds = turn.work.models[turn.model_calls]
        turn.model_calls += 1
        self._after(seconds, lambda: self._reply(turn))

    def _reply(self, turn: _Turn) -> None:
        if turn.model_calls > len(turn.work.rounds):
            self._end(turn)
            return
        self.turn_slots.give_back()
        tools = turn.work.rounds[turn.model_calls - 1]
        turn.tools_out = len(tools)
        for seconds in tools:
            self.tool_slots.put(turn.work.group, lambda s=seconds: self._after(s, lambda: self._tool_done(turn)))  # type: ignore[misc]

    def _tool_done(self, turn: _Turn) -> None:
        self.tool_slots.give_back()
        turn.tools_out -= 1
        if not turn.tools_out:  # back through the queue of its group: here a chore gives way to a chat
            self.turn_slots.put(turn.work.group, lambda: self._ask_model(turn))

    def _end(self, turn: _Turn) -> None:
        run = turn.run
        assert run is not None
        with self.ledger.cost_of("end"):
            intents = endings.end_here(self._rt, RunClaim(run=run, step=run.step, token=None), NATURAL_END)
        self.done += 1
        self.ledger.until_done[turn.work.group].append(self._clock.now - turn.came)
        del self._turns[run.turn_id]
        self._after(self._commit, lambda: self._let_go(intents))

    def _let_go(self, intents: Iterable[Intent]) -> None:
        self.turn_slots.give_back()
        self._send(intents)
