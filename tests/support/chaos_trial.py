"""Load of every kind on a fleet that is mistreated, for some minutes, from one seed; and how long recoveries took.

The faults are struck by a thread of their own, which also starts dead workers again. The thread of the test submits
turns, answers questions, steps, cancels, and samples the budgets.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.errors import ChordageError, Conflict, Unavailable
from chordage.orchestrator.core.stepping import Standing
from chordage.orchestrator.store import schema
from chordage.tasks.accepting import step
from chordage.tasks.courier import Courier
from chordage.tasks.schema import verb_from
from chordage.workers.app import make_app
from support.chaos_faults import KINDS
from support.chaos_fleet import ChaosFleet
from support.rig import Plan
from support.rig_inbox import answer, inbox
from support.sabotage import Guard

AT_ONCE = 40  # turns that are not done
FAULTS_AT_ONCE = 2
PAUSE = (0.5, 4.0)  # seconds between two faults
QUICK_PAUSE = (0.1, 1.0)  # where one guard is looked for
SENT_AT_MOST = 300  # messages by name
CALM = 240.0  # seconds after the last fault, within which every turn has to end
ROUNDS = (("pure",), ("idempotent", "pure"), ("unsafe",), ("pure", "unsafe", "idempotent"), ("pure",) * 6, ())
PLACEMENTS = ("here", "together", "spread", "auto")
HELD = {Standing.READY, Standing.HELD, Standing.PARKED, Standing.FAILED}


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageKind:
    """What callers send. `threads`: how many they share; 0: each has its own. `agent`: by default one by placement."""

    weight: int
    threads: int
    agent: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    is_delivered: bool = False


SLOW_MODEL = {"latency": 0.4}  # so that the next message finds the thread busy
MESSAGES = {
    "plain": MessageKind(weight=30, threads=40),
    "delivered": MessageKind(weight=12, threads=8, is_delivered=True),
    "asking": MessageKind(weight=8, threads=20, agent="asker", plan={"tools": ("asks", "pure")}),
    "raising": MessageKind(weight=4, threads=20, agent="asker", plan={"tools": ("asks_by_raising",)}),
    "family": MessageKind(
        weight=8, threads=12, agent="lead", plan={"tools": ("ask_spread", "pure", "ask_spread"), "rounds": 1}
    ),
    "planned": MessageKind(weight=6, threads=12, agent="planner", plan={"tools": ("pure", "idempotent")}),
    "stepped": MessageKind(
        weight=5, threads=0, plan={"tools": ("pure", "idempotent")},
        fields={"control": "step", "step": {"hold_seconds": 600}},
    ),
    "steering": MessageKind(weight=8, threads=6, plan=SLOW_MODEL, fields={"when_busy": "steer"}),
    "interrupting": MessageKind(weight=4, threads=6, plan=SLOW_MODEL, fields={"when_busy": "interrupt"}),
    "rolling back": MessageKind(weight=2, threads=4, plan=SLOW_MODEL, fields={"when_busy": "rollback"}),
}  # fmt: skip


@dataclass(slots=True)
class Strike:
    name: str
    detail: str
    began: datetime
    ended: datetime | None = None
    at_work: frozenset[str] = frozenset()  # runs that were under way when it began


class Striker(threading.Thread):
    """Strikes faults until it is stopped. What went wrong with it is raised by `stop`."""

    def __init__(
        self,
        fleet: ChaosFleet,
        chance: random.Random,
        at_work: Callable[[], frozenset[str]],
        faults: Collection[str] | None = None,
    ) -> None:
        """`faults`: these alone; all, if none are named."""
        super().__init__(daemon=True)
        self._fleet, self._chance, self._at_work = fleet, chance, at_work
        self._pause = PAUSE if faults is None else QUICK_PAUSE
        self._over = threading.Event()
        self._fault: BaseException | None = None
        self._next = time.monotonic() + 2.0
        self._under_way: dict[str, tuple[float, AbstractContextManager[str], Strike]] = {}  # by what they are on
        self._seen: frozenset[str] = frozenset()  # runs that were at work when that could be read last
        self.strikes: list[Strike] = []
        wanted = KINDS if faults is None else {name: KINDS[name] for name in faults}
        self.kinds = {name: kind for name, kind in wanted.items() if kind.needs(fleet)}

    def run(self) -> None:
        try:
            while not self._over.wait(0.05):
                self._end(due_by=time.monotonic())
                self._fleet.rig.restart_the_dead()
                if time.monotonic() >= self._next and len(self._under_way) < FAULTS_AT_ONCE:
                    self._strike()
                    self._next = time.monotonic() + self._chance.uniform(*self._pause)
        except BaseException as fault:  # noqa: BLE001 - told by `stop`
            self._fault = fault
        finally:
            self._end(due_by=float("inf"))

    def stop(self) -> None:
        """Every fault is over, and every worker is there."""
        self._over.set()
        self.join(180)
        assert not self.is_alive(), "a fault does not end"
        self._fleet.clock.unlink(missing_ok=True)
        if self._fault is not None:
            raise AssertionError("the faults themselves failed") from self._fault

    def _strike(self) -> None:
        free = {name: kind for name, kind in self.kinds.items() if kind.on not in self._under_way}
        if not free:
            return
        (name,) = self._chance.choices(list(free), [kind.weight for kind in free.values()])
        kind = free[name]
        seconds, held = self._chance.uniform(*kind.seconds), kind.strikes(self._fleet, self._chance)
        if "database" not in self._under_way:  # a frozen one does not answer, and this thread has to end that
            self._seen = self._at_work()
        strike = Strike(name, "", datetime.now(UTC), at_work=self._seen)
        strike.detail = held.__enter__()
        self._under_way[kind.on] = (time.monotonic() + seconds, held, strike)
        self.strikes.append(strike)

    def _end(self, due_by: float) -> None:
        for on, (due, held, strike) in list(self._under_way.items()):
            if due <= due_by:
                del self._under_way[on]
                held.__exit__(None, None, None)
                strike.ended = datetime.now(UTC)


@dataclass(slots=True)
class Trial:
    fleet: ChaosFleet
    seed: int
    accepted: dict[str, str] = field(default_factory=dict)  # the turn of each plan
    kinds: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # what was tried and refused, by the name of the error
    stepped: set[str] = field(default_factory=set)
    over_budget: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)  # plans that went by name, to whichever worker takes them
    answered_twice: list[str] = field(default_factory=list)
    guard: Guard | None = None  # that the fleet lacks
    _chance: random.Random = field(init=False)
    _courier: Courier = field(init=False)  # it sends rounds too, as a process that serves the stepped loop does
    _sampled: float = 0.0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._courier = Courier(make_app(self.fleet.rig.settings))

    def run(self, seconds: float, turns: int) -> list[Strike]:
        """For so long, and until so many turns were submitted."""
        until = time.monotonic() + seconds
        with self._faults(None) as striker:
            while time.monotonic() < until or len(self.accepted) < turns:
                self._tick(submits=True)
                assert striker.is_alive() or striker.stop() is None
        self._settle(CALM)
        return striker.strikes

    def hunt(self, seconds: float, turns: int, look: Callable[[], list[str]]) -> list[str]:
        """What `look` finds first in that time, by the fleet that lacks a guard; asked each second."""
        assert self.guard is not None
        until = time.monotonic() + seconds
        with self._faults(self.guard.faults):
            while time.monotonic() < until or len(self.accepted) + len(self.sent) < turns:
                looked = time.monotonic()
                while time.monotonic() < looked + 1.0:
                    self._tick(submits=True)
                if found := look():
                    return found
        self._settle(seconds)
        return []

    @contextlib.contextmanager
    def _faults(self, only: Collection[str] | None) -> Iterator[Striker]:
        striker = Striker(self.fleet, random.Random(self.seed + 1), self._at_work, only)
        striker.start()
        try:
            yield striker
        finally:
            striker.stop()

    def _settle(self, calm: float) -> None:
        """The pulse stops as well: its turns would never end."""
        self.fleet.rig.restart_the_dead()
        for chore in (self.fleet.rig.room / "chores").glob("*.md"):
            chore.write_text(chore.read_text().replace("---\nevery", "---\npaused: true\nevery", 1))
        until = time.monotonic() + calm
        while not self._is_quiet():
            self._tick(submits=False)
            self.fleet.rig.restart_the_dead()
            assert time.monotonic() < until, f"not all is over {calm:g} s later\n{self.fleet.rig.what_is_open()}"

    def _is_quiet(self) -> bool:
        rig = self.fleet.rig
        with contextlib.suppress(Unavailable):
            if rig.unfinished():
                return False
            with rig.runtime.store.read() as tx:
                newest = tx.execute(select(func.coalesce(func.max(schema.journal.c.id), 0))).scalar_one()
                copied = tx.execute(select(func.coalesce(func.max(schema.projection.c.position), -1))).scalar_one()
                unsent = select(func.count()).where(schema.outbox.c.status != "sent")
                return copied >= newest and tx.execute(unsent).scalar_one() == 0
        return False

    def _tick(self, *, submits: bool) -> None:
        acts: list[Callable[[], None]] = [self._answer, self._step, self._sample]
        if submits:
            acts += [self._cancel, self._submit]
        for act in acts:
            try:
                act()
            except ChordageError as error:
                self.refused[f"{type(error).__name__}: {str(error)[:90]}"] += 1
        time.sleep(0.05)  # the pace of the callers

    # the callers

    def _submit(self) -> None:
        """A message that was not taken comes again, under the same key; and one in twenty comes twice."""
        if self.fleet.rig.unfinished() >= AT_ONCE or len(self.sent) > SENT_AT_MOST:
            return
        named = self.guard.messages if self.guard is not None else ()
        kinds = {name: MESSAGES[name] for name in named or MESSAGES}
        (name,) = self._chance.choices(list(kinds), [kind.weight for kind in kinds.values()])
        plan, fields = self._message(name, kinds[name])
        if self.guard is not None and self.guard.sends_by_name:
            sent = {"text": plan.text, "dedupe_key": plan.id, "thread_id": fields["thread"], "agent": fields["agent"]}
            self.fleet.rig.app.send_task("turns.submit", kwargs=sent, queue="chat")
            self.sent.append(plan.id)
            return
        turn = self.fleet.rig.submit_surely(plan, **fields)
        self.accepted[plan.id] = turn
        self.kinds[name] += 1
        if fields.get("control") == "step":
            self.stepped.add(turn)
        if self._chance.random() < 0.05:
            self.fleet.rig.submit_surely(plan, **fields)

    def _message(self, name: str, kind: MessageKind) -> tuple[Plan, dict[str, Any]]:
        unique = f"{name}-{len(self.accepted) + len(self.sent)}"
        tools = self._chance.choice(ROUNDS)
        usual = {
            "tools": tools,
            "rounds": self._chance.choice((1, 1, 2)) if tools or "tools" in kind.plan else 0,
            "seconds": self._chance.choice((0.0, 0.001, 0.05, 0.3)),
            "latency": self._chance.choice((0.0, 0.1, 0.4)),
        }
        fields = {
            "thread": f"{name}{self._chance.randrange(kind.threads)}" if kind.threads else unique,
            "agent": kind.agent or self._chance.choice(PLACEMENTS),
            **kind.fields,
        }
        if kind.is_delivered:
            fields["reply_target"] = {"url": f"{self.fleet.receiver.url}/in"}
        return Plan(id=unique, **{**usual, **kind.plan}), fields

    def _answer(self) -> None:
        """A person says of an unsafe call whose process was lost what the ledger says."""
        questions = [row for row in inbox(self.fleet.rig) if row["why"] != "child"]
        for row in questions[:5]:
            if row["why"] == "outcome_unknown":
                answer(self.fleet.rig, row, payload={"answer": "failed"})
                self.answers["outcome_unknown"] += 1
            elif self._chance.random() < 0.7:
                answer(self.fleet.rig, row, payload=True)
                self.answers["approved"] += 1
                self._contradict(row, action="cancel", reason="too late")
            else:
                answer(self.fleet.rig, row, action="cancel", reason="no")
                self.answers["denied"] += 1
                self._contradict(row, payload=True)

    def _contradict(self, row: dict[str, Any], **fields: Any) -> None:
        """Another person says the opposite of what was said just now, which has to be refused."""
        if self._chance.random() < 0.2:
            with contextlib.suppress(Conflict):
                answer(self.fleet.rig, row, decision_key=None, **fields)
                self.answered_twice.append(row["id"])

    def _step(self) -> None:
        rt = self.fleet.rig.runtime
        for turn in list(self.stepped):
            state = views.stepped(rt.store, turn)
            if state.standing is Standing.DONE:
                self.stepped.discard(turn)
            elif state.standing in HELD:
                fields = {"turn": turn, "verb": "next", "if_rev": state.rev, "key": f"{turn}:{state.rev}"}
                step(rt, self._courier, verb_from(fields, space=None))

    def _cancel(self) -> None:
        if self._chance.random() < 0.01 and self.accepted:
            turn = self._chance.choice(list(self.accepted.values())[-AT_ONCE:])
            self._courier.send(stages.cancel_turn(self.fleet.rig.runtime, turn)[1])

    # what is looked at meanwhile

    def _at_work(self) -> frozenset[str]:
        runs = schema.runs.c
        with contextlib.suppress(Unavailable), self.fleet.rig.runtime.store.read() as tx:
            asked = select(runs.id).where(runs.status == "running", runs.control == "auto", runs.grp == "chat")
            return frozenset(tx.execute(asked).scalars())
        return frozenset()

    def _sample(self) -> None:
        """A run that is resumed, by a decision or by who steps it, continues whatever the budget, and has no place."""
        if time.monotonic() < self._sampled + 1.0:
            return
        self._sampled = time.monotonic()
        runs, budgets = schema.runs.c, self.fleet.settings["budgets"]
        with self.fleet.rig.runtime.store.read() as tx:
            at_work = (runs.status == "running") & runs.place.is_not(None) & (runs.stalled == 0)
            counted = tx.execute(select(runs.grp, func.count()).where(at_work).group_by(runs.grp)).all()
        self.over_budget += [f"{group}: {count}" for group, count in counted if count > budgets.get(group, 8)]


def recoveries(trial: Trial, strikes: list[Strike]) -> dict[str, list[float]]:
    """For each fault, how long after its end the last of the runs ended that were under way when it began. Runs that
    waited for a person are left out.
    """
    rows = {row["id"]: row for row in trial.fleet.rig.rows("runs")}
    asked = {row["run_id"] for row in trial.fleet.rig.rows("suspensions")}
    taken: dict[str, list[float]] = defaultdict(list)
    for strike in strikes:
        ends = [rows[run]["ended_at"] for run in strike.at_work if run in rows and run not in asked]
        over = strike.ended or strike.began
        taken[strike.name].append(max([0.0, *((end - over).total_seconds() for end in ends if end is not None)]))
    return taken


def report(trial: Trial, strikes: list[Strike], seconds: float) -> Iterator[str]:
    rows = trial.fleet.rig.rows("turns")
    yield f"seed {trial.seed}, {seconds:.0f} s, {len(rows)} turns, {len(strikes)} faults"
    yield "turns: " + ", ".join(f"{count} {kind}" for kind, count in trial.kinds.most_common())
    ended = Counter(row["disposition"] for row in rows)
    yield "ended: " + ", ".join(f"{count} {end}" for end, count in ended.most_common())
    yield "answers: " + (", ".join(f"{count} {what}" for what, count in trial.answers.most_common()) or "none")
    yield "refused or away: " + (", ".join(f"{count} {what}" for what, count in trial.refused.most_common()) or "none")
    yield f"{'fault':30} {'times':>6} {'median':>8} {'p95':>8} {'worst':>8}  seconds to recover"
    taken = recoveries(trial, strikes)
    for name, each in sorted(taken.items()):
        yield f"{name:30} {len(each):6} {_figures(each)}"
    yield f"{'all':30} {len(strikes):6} {_figures([one for each in taken.values() for one in each])}"


def _figures(seconds: list[float]) -> str:
    ranked = sorted(seconds)
    return f"{statistics.median(ranked):8.1f} {ranked[math.ceil(0.95 * len(ranked)) - 1]:8.1f} {ranked[-1]:8.1f}"


def story(strikes: list[Strike]) -> str:
    return "\n".join(
        json.dumps({"at": strike.began.isoformat(timespec="milliseconds"), "fault": strike.name, "of": strike.detail})
        for strike in strikes
    )
