"""The steps of a drill on a live fleet: what is done, what is waited for, and the rows that are judged afterwards.

Everything that a step breaks is the drill's own, or mends itself when the drill is killed: workers of its own end with
it, and a pause of Redis has its end in the command. Canaries that a drill left behind are erased by the next one.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from redis.exceptions import RedisError

from chordage.config.settings import Settings, as_environment
from chordage.orchestrator import stages
from chordage.orchestrator.core.audit import CLI, Audited
from chordage.orchestrator.core.drill import (
    AGENT_NAME,
    SPACE,
    TENANT,
    DrillResult,
    DrillStep,
    DrillTimes,
    StepReport,
    step_report,
)
from chordage.orchestrator.core.errors import Conflict, NotFound, Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest, placed
from chordage.orchestrator.core.presence import HeldWork
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import audit, drills, groups, processes
from chordage.orchestrator.system import process_identity
from chordage.tasks.courier import Courier
from chordage.workers.bootstrap import redis_from
from chordage.workers.drill.own_worker import MODULE
from chordage.workers.presence import machine, worker_name

THREADS = 2  # of each step, with
TURNS = 2  # turns on each, behind each other
LOOK = 0.1  # seconds between two looks at the rows
IN_HAND_WITHIN = 20.0  # seconds for a worker to be inside an unsafe call
READY_WITHIN = 60.0  # for a worker of our own to start
AFTER_THE_BOUND = 30.0  # for which turns that are late are waited for, to say how late
LEFT_BEHIND = timedelta(hours=1)  # canaries of a drill that began before this belong to none that still runs
STAMP = "%Y%m%d%H%M%S"


class CannotRun(Exception):
    """The step could not be carried out: nothing was learnt. The text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillPlan:
    """What is to be done. `target`: the worker of the fleet that is killed; None: one of the drill's own."""

    steps: tuple[DrillStep, ...]
    group: Group
    times: DrillTimes
    target: HeldWork | None = None

    def bound(self, step: DrillStep) -> float:
        return self.times.bound(step, TURNS)


def times_of(settings: Settings, cut: float) -> DrillTimes:
    return DrillTimes(
        lease=settings.lease, beat=settings.beat, sweep=settings.sweep, presence=settings.presence,
        gone_after=settings.gone_after, cut=cut,
    )  # fmt: skip


def present_workers(rt: Runtime, settings: Settings) -> list[HeldWork]:
    """Those that show their presence now. No clock of another machine is asked: it is looked whether it changes."""
    before = {one.id: one.seen_at for one in _processes(rt)}
    until, changed = time.monotonic() + settings.gone_after, list[HeldWork]()
    while time.monotonic() < until:
        time.sleep(LOOK)
        present = _processes(rt)
        changed = [one for one in present if before.get(one.id) != one.seen_at]
        if len(changed) == len(present):
            break
    return changed


def _processes(rt: Runtime) -> list[HeldWork]:
    with rt.store.read() as tx:
        return [one for one in processes.with_their_work(tx) if one.gone_at is None]


def check_fleet(rt: Runtime, group: Group, workers: Sequence[HeldWork]) -> None:
    """Raises Unavailable where canaries of this group could not run."""
    served = {queue for one in workers for queue in one.queues or ()}
    for queue in (group.queue, group.tools_queue):
        if queue not in served:
            problem = f"no worker that shows its presence takes messages from queue {queue!r}"
            raise Unavailable(f"{problem}: start one, or choose another group with --group")
    with rt.store.read() as tx:
        free = groups.places(tx, group, default=rt.budgets[group]).free
    if not free:
        problem = f"group {group.value!r} has no free place in its budget"
        raise Unavailable(f"{problem}: wait, raise it (`chordage groups set`), or choose another with --group")


def check_plan(settings: Settings, steps: Sequence[DrillStep]) -> None:
    """Raises Conflict where a step cannot hold by these settings."""
    if DrillStep.KILL in steps and settings.poison_after == 1:
        problem = "CHORDAGE_POISON_AFTER is 1: the first death of a worker ends a run, and the step kill could not hold"
        raise Conflict(f"{problem}; raise it, or leave the step out with --only")


def target_of(name: str, workers: Sequence[HeldWork]) -> HeldWork:
    """The worker to kill. Raises NotFound, and Conflict where it may not be killed or not from here."""
    named = [one for one in workers if one.id == name or str(one.pid) == name]
    if len(named) != 1:
        known = ", ".join(one.id for one in workers) or "none"
        raise NotFound(f"there is no single worker {name!r}; those that show their presence: {known}")
    (worker,) = named
    if not worker.drill:
        problem = f"worker {worker.id} does not allow drills"
        raise Conflict(f"{problem}: start it with CHORDAGE_DRILL=on, or leave --worker out")
    if worker.machine != machine():
        raise Conflict(f"worker {worker.id} runs on another machine: call `chordage drill --worker` there")
    return worker


class GameDay:
    def __init__(self, settings: Settings, rt: Runtime, courier: Courier, plan: DrillPlan) -> None:
        """`rt`: without Redis, which is cut off meanwhile."""
        self.id = f"{datetime.now(UTC).strftime(STAMP)}-{secrets.token_hex(3)}"
        self._settings = settings
        self._rt = rt
        self._courier = courier
        self._plan = plan
        self._do: dict[DrillStep, Callable[[], StepReport]] = {
            DrillStep.CANARY: self._canary,
            DrillStep.KILL: self._kill_own if plan.target is None else self._kill_target,
            DrillStep.REDIS: self._cut_redis,
            DrillStep.CLOCK: self._move_clocks,
        }

    def run(self, on_begin: Callable[[DrillStep], None]) -> Iterator[StepReport]:
        self._record()
        for step in self._plan.steps:
            on_begin(step)
            try:
                yield self._do[step]()
            except (CannotRun, RedisError, Unavailable) as error:
                bound = self._plan.bound(step)
                yield StepReport(step=step, result=DrillResult.NOT_RUN, bound=bound, notes=(str(error),))

    def _record(self) -> None:
        """Before anything is broken."""
        target = self._plan.target
        detail = {"steps": [step.value for step in self._plan.steps], "worker": target and target.id}
        with self._rt.store.write() as tx:
            audit.record(tx, CLI, Audited.DRILLED, self.id, now=self._rt.now(), detail=detail)

    def threads_to_erase(self) -> list[str]:
        """Ours, and those of drills that were killed."""
        old = placed(SPACE, (datetime.now(UTC) - LEFT_BEHIND).strftime(STAMP))
        with self._rt.store.read() as tx:
            return [one for one in drills.threads_left(tx) if one < old or one.startswith(placed(SPACE, self.id))]

    # The steps.

    def _canary(self) -> StepReport:
        threads = self._admit(DrillStep.CANARY, send=True)
        return self._judged(DrillStep.CANARY, threads, since=time.monotonic())

    def _kill_own(self) -> StepReport:
        with self._own_worker() as own:
            threads = self._admit(DrillStep.KILL)
            own.carry_out(threads)
            self._wait_for(lambda: own.name in self._inside_unsafe(threads), f"{own.name} is inside an unsafe call")
            own.kill()
            killed_at = time.monotonic()
            notes = [f"killed {own.name}, a worker of the drill's own"]
            return self._judged(DrillStep.KILL, threads, since=killed_at, killed={own.name}, notes=notes)

    def _kill_target(self) -> StepReport:
        target = self._plan.target
        assert target is not None
        before = {one.id: one for one in _processes(self._rt) if one.machine == machine()}
        threads = self._admit(DrillStep.KILL, send=True)
        self._wait_for(
            lambda: bool(self._inside_unsafe(threads)) and target.id in self._holders(threads),
            f"{target.id} holds canaries, one of them inside an unsafe call",
        )
        _kill(target)
        killed_at = time.monotonic()
        turns = self._wait(threads, since=killed_at, bound=self._plan.bound(DrillStep.KILL))
        # Processes of its pool end with it.
        dead = {one.id for one in before.values() if not process_identity.is_alive(one.pid, one.born)}
        follower = next((one for one in _processes(self._rt) if _replaces(one, target, before)), None)
        notes = [
            f"killed {target.id}, with {len(dead) - 1} processes of its pool",
            f"{follower.id} has taken its place" if follower else "no supervisor has started another in its place",
        ]
        return self._report(DrillStep.KILL, threads, turns, killed=dead, notes=notes)

    def _cut_redis(self) -> StepReport:
        cut = self._plan.times.cut
        with closing(redis_from(self._settings)) as client:
            client.client_unpause()  # raises where this account may not pause either, before anything is sent
            before = self._admit(DrillStep.REDIS, send=True)
            self._wait_for(lambda: bool(self._inside_unsafe(before)), "a worker is inside an unsafe call")
            client.client_pause(int(cut * 1000), all=True)
        back_at = time.monotonic() + cut
        meanwhile = self._admit(DrillStep.REDIS, first=THREADS)  # their wake-ups are lost
        notes = [f"Redis answered no client for {cut:g} s; times count from its return"]
        return self._judged(DrillStep.REDIS, [*before, *meanwhile], since=back_at, notes=notes)

    def _move_clocks(self) -> StepReport:
        skew = self._plan.times.skew
        with self._own_worker(skew) as ahead, self._own_worker(-skew) as behind:
            threads = self._admit(DrillStep.CLOCK)
            since = time.monotonic()
            ahead.carry_out(threads[::2])
            behind.carry_out(threads[1::2])
            notes = [f"the clock of {ahead.name} was {skew:g} s ahead, that of {behind.name} {skew:g} s behind"]
            return self._judged(DrillStep.CLOCK, threads, since=since, notes=notes)

    # What they are made of.

    def _admit(self, step: DrillStep, *, send: bool = False, first: int = 0) -> list[CanaryThread]:
        text = json.dumps({"seconds": self._plan.times.work(step)})
        threads, intents = list[CanaryThread](), list[Intent]()
        for number in range(first, first + THREADS):
            name = f"{self.id}-{step.value}-{number}"
            message = Message(
                origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=name, text=text,
                meta={"drill": self.id},
            )  # fmt: skip
            request = TurnRequest(
                message=message, agent=AGENT_NAME, group=self._plan.group, tenant=TENANT, source="drill", space=SPACE,
                by=CLI,
            )  # fmt: skip
            admitted = [stages.admit(self._rt, request) for _ in range(TURNS)]
            intents += [intent for _, more in admitted for intent in more]
            turn_ids = tuple(one.turn_id for one, _ in admitted)
            threads.append(CanaryThread(id=admitted[0][0].thread_id, turn_ids=turn_ids))
        if send:
            self._courier.send(intents)
        return threads

    def _inside_unsafe(self, threads: Sequence[CanaryThread]) -> set[str]:
        with self._rt.store.read() as tx:
            return drills.holders_of_unsafe_calls(tx, [thread.id for thread in threads])

    def _holders(self, threads: Sequence[CanaryThread]) -> set[str]:
        with self._rt.store.read() as tx:
            return drills.holders(tx, [thread.id for thread in threads])

    def _wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + IN_HAND_WITHIN
        while not is_so():
            if time.monotonic() > until:
                raise CannotRun(f"within {IN_HAND_WITHIN:g} s it did not come about that {what}: nothing was broken")
            time.sleep(LOOK)

    def _judged(
        self,
        step: DrillStep,
        threads: Sequence[CanaryThread],
        *,
        since: float,
        killed: Collection[str] = (),
        notes: Sequence[str] = (),
    ) -> StepReport:
        turns = self._wait(threads, since=since, bound=self._plan.bound(step))
        return self._report(step, threads, turns, killed=killed, notes=notes)

    def _wait(self, threads: Sequence[CanaryThread], *, since: float, bound: float) -> dict[str, float]:
        """The turns that ended, each with its seconds since that moment. Those that end before it took none."""
        open_turns = {turn_id for thread in threads for turn_id in thread.turn_ids}
        ended: dict[str, float] = {}
        while open_turns and time.monotonic() < since + bound + AFTER_THE_BOUND:
            with self._rt.store.read() as tx:
                more = drills.ended(tx, open_turns)
            ended |= dict.fromkeys(sorted(more), max(0.0, time.monotonic() - since))
            open_turns -= more
            time.sleep(LOOK)
        return ended

    def _report(
        self,
        step: DrillStep,
        threads: Sequence[CanaryThread],
        ended: dict[str, float],
        *,
        killed: Collection[str],
        notes: Sequence[str],
    ) -> StepReport:
        with self._rt.store.read() as tx:
            rows = drills.rows(tx, [thread.id for thread in threads])
        admitted = [turn_id for thread in threads for turn_id in thread.turn_ids]
        return step_report(
            step, self._plan.bound(step), rows, recovered=ended, admitted=admitted, killed=killed, notes=notes
        )

    @contextmanager
    def _own_worker(self, wrong_by: float = 0.0) -> Iterator[OwnWorker]:
        own = OwnWorker(self._settings, wrong_by)
        try:
            own.wait_until_ready(lambda name: any(one.id == name for one in _processes(self._rt)))
            yield own
        finally:
            own.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryThread:
    id: str
    turn_ids: tuple[str, ...]


class OwnWorker:
    """A process of workers/drill/own_worker.py."""

    def __init__(self, settings: Settings, wrong_by: float) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CHORDAGE_")}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(wrong_by)],
            stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, text=True, start_new_session=True,
            env={**inherited, **as_environment(settings)},
        )  # fmt: skip
        self.name = worker_name(self._process.pid)

    def wait_until_ready(self, is_present: Callable[[str], bool]) -> None:
        """Raises CannotRun."""
        until = time.monotonic() + READY_WITHIN
        while not is_present(self.name):
            if self._process.poll() is not None or time.monotonic() > until:
                self._log.seek(0)
                raise CannotRun(f"a worker of the drill's own did not start: {self._log.read()[-500:].strip()}")
            time.sleep(LOOK)

    def carry_out(self, threads: Sequence[CanaryThread]) -> None:
        assert self._process.stdin is not None
        for thread in threads:
            self._process.stdin.write(json.dumps(thread.turn_ids) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Its remains are taken away at once: to the others on this machine a zombie would still be there."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """It ends with its input, and leaves what it holds to the fleet."""
        with self._process as process, self._log:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(READY_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()


def _kill(target: HeldWork) -> None:
    """Its number and its start are compared first: another process may have the number by now."""
    try:
        if process_identity.is_alive(target.pid, target.born):
            os.kill(target.pid, signal.SIGKILL)
            return
    except ProcessLookupError:
        pass
    raise CannotRun(f"worker {target.id} has ended by itself")


def _replaces(one: HeldWork, target: HeldWork, before: Collection[str]) -> bool:
    return one.id not in before and one.machine == target.machine and one.queues == target.queues
