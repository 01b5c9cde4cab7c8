"""The facts behind the reasons: rows of several tables, and what Redis knows of work in flight, put together.

All rows of one kind are read together, so a list costs as many statements as one row does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import OnExpiry, SuspensionStatus, Why
from chordage.orchestrator.core.deliveries import DeliveryStatus, shown
from chordage.orchestrator.core.groups import DELIVERY_QUEUE, Group
from chordage.orchestrator.core.leases import LeaseRules
from chordage.orchestrator.core.pulse import PulseRow, PulseState, WorkKind, named
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Phase
from chordage.orchestrator.core.status import OPEN_CALL, OPEN_RUN, CallStatus, RunStatus, TurnStatus
from chordage.orchestrator.core.stepping import Drive, OnHeld
from chordage.orchestrator.core.why.calls import OpenCall, OpenSuspension, of_call, of_suspension
from chordage.orchestrator.core.why.deliveries import UnsentReply, of_delivery
from chordage.orchestrator.core.why.reasons import Finding, RowKey, RowKind, WaitClock
from chordage.orchestrator.core.why.runs import HoldState, OpenRun, of_run
from chordage.orchestrator.core.why.schedules import ChannelLook, LiveWork, of_channel, of_work
from chordage.orchestrator.core.why.turns import HOLDERS, GroupState, LineState, QueuedTurn, of_queued_turn
from chordage.orchestrator.gateways.absent import NoLocks
from chordage.orchestrator.gateways.ports import Locks, WorkMark
from chordage.orchestrator.store import children, fairness, polls, waits
from chordage.orchestrator.store import pulse as pulse_rows
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.waits import WaitRow

SILENT = timedelta(minutes=1)  # a process that has not shown itself for so long serves no queue
HERE = "here"  # begins the words about a call that stays in the process of its run
NO_LOCKS = NoLocks()
NO_MARK = WorkMark()


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitSources:
    """Where the facts come from, and for whom. `budgets`: of the settings; one in the database overrides it.
    `space`: of a caller, who sees what is on its own threads; None: an operator's.
    """

    store: Store
    now: datetime
    budgets: Mapping[Group, int]
    leases: LeaseRules = field(default_factory=LeaseRules)
    locks: Locks = NO_LOCKS
    space: str | None = None

    @property
    def clock(self) -> WaitClock:
        return WaitClock(now=self.now, leases=self.leases)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetRecord:
    """The processes on record."""

    gone: frozenset[str]
    served: frozenset[str] | None  # queues; None: a process lives whose queues are not known

    def serves(self, queue: str) -> bool:
        return self.served is None or queue in self.served


def fleet_record(tx: Tx, now: datetime) -> FleetRecord:
    rows = waits.processes_on_record(tx)
    alive = [row["queues"] for row in rows if row["gone_at"] is None and row["seen_at"] >= now - SILENT]
    served = None if None in alive else frozenset(queue for queues in alive for queue in queues.split(","))
    return FleetRecord(gone=frozenset(row["id"] for row in rows if row["gone_at"] is not None), served=served)


def findings(sources: WaitSources, keys: Collection[RowKey]) -> dict[RowKey, Finding]:
    """The reasons of those of these rows that wait."""
    with sources.store.read() as tx:
        rows = _Rows(tx, sources, keys)
    return rows.findings(keys)


class _Rows:
    """What was read for some rows. Redis is asked after the transaction."""

    def __init__(self, tx: Tx, sources: WaitSources, keys: Collection[RowKey]) -> None:
        self._sources = sources
        self._fleet = fleet_record(tx, sources.now)
        asked = _by_kind(keys)
        self._read_turns(tx, asked[RowKind.TURN])
        self._read_work(tx, asked)
        self._read_queues(tx)
        self._read_outside(tx, asked)

    # what is read

    def _read_turns(self, tx: Tx, turn_ids: Collection[str]) -> None:
        self._turns = _by_id(waits.turns_of(tx, turn_ids) if turn_ids else ())

    def _read_work(self, tx: Tx, asked: Mapping[RowKind, Collection[str]]) -> None:
        """Runs with their open calls and questions: those asked for, and those of what is asked for."""
        calls = waits.calls_of(tx, asked[RowKind.CALL]) if asked[RowKind.CALL] else ()
        questions = waits.questions_of(tx, asked[RowKind.SUSPENSION]) if asked[RowKind.SUSPENSION] else ()
        run_ids = {row["run_id"] for row in (*calls, *questions)} | set(asked[RowKind.RUN])
        run_ids |= {
            row["run_id"] for row in self._turns.values() if row["status"] == TurnStatus.ACTIVE and row["run_id"]
        }
        self._runs = _by_id(waits.runs_of(tx, run_ids) if run_ids else ())
        open_runs = {run_id for run_id, run in self._runs.items() if run["status"] in OPEN_RUN}
        self._calls = _by_id([*calls, *(waits.calls_of_runs(tx, open_runs) if open_runs else ())])
        self._questions = _by_id([*questions, *(waits.questions_of_runs(tx, open_runs) if open_runs else ())])
        parents = [row["call_id"] for row in self._questions.values() if row["why"] == Why.CHILD]
        self._children = {row["parent_call"]: row for row in children.of_calls(tx, parents)} if parents else {}
        held = {run["turn_id"] for run in self._runs.values() if run["reason"] == Reason.HELD}
        self._holds = waits.holds_of(tx, held) if held else {}

    def _read_queues(self, tx: Tx) -> None:
        now = self._sources.now
        queued = [row for row in self._turns.values() if row["status"] == TurnStatus.QUEUED]
        lines = {row["thread_id"] for row in queued}
        self._open_on = waits.open_on(tx, lines) if lines else {}
        behind = {row["thread_id"] for row in queued if row["ready"] == 0}
        self._heads = waits.next_on_threads(tx, behind, now) if behind else {}
        groups = sorted({Group(row["grp"]) for row in queued})
        self._groups = {group: self._group(tx, group) for group in groups}
        ready = {row["id"]: Group(row["grp"]) for row in queued if row["ready"] == 1}
        full = {group for group in set(ready.values()) if not self._groups[group].free and self._groups[group].budget}
        self._own_before = waits.own_before(tx, ready) if full else {}
        self._by_tenant = {group: waits.ready_by_tenant(tx, group, now) for group in full}

    def _group(self, tx: Tx, group: Group) -> GroupState:
        row = waits.group(tx, group, self._sources.now, default=self._sources.budgets[group])
        free = max(0, row.budget - row.running)
        ready = fairness.count_ready(tx, group, self._sources.now, free + 1) if free else 0
        return GroupState(
            group=group, budget=row.budget, running=row.running,
            holders=() if free or not row.running else waits.holders(tx, group, HOLDERS), next_tenant=row.next_tenant,
            all_fit=ready <= free, is_served=self._fleet.serves(group.queue), names_others=self._sources.space is None,
        )  # fmt: skip

    def _read_outside(self, tx: Tx, asked: Mapping[RowKind, Collection[str]]) -> None:
        numbers = [int(number) for number in asked[RowKind.DELIVERY]]
        self._deliveries = {str(row["id"]): row for row in waits.deliveries_of(tx, numbers)} if numbers else {}
        self._bus = waits.bus_position(tx) if numbers else None
        names = [name for name in map(work_key, asked[RowKind.PULSE]) if name is not None]
        works = pulse_rows.load_all(tx, names) if names else []
        self._works = {named(work.kind, work.key): work for work in works}
        channels = asked[RowKind.CHANNEL]
        self._channels = {row["name"]: row for row in polls.load_all(tx) if row["name"] in channels} if channels else {}

    # what it says

    def findings(self, keys: Collection[RowKey]) -> dict[RowKey, Finding]:
        found = {key: self._finding(key) for key in keys}
        return {key: finding for key, finding in found.items() if finding is not None}

    def _finding(self, key: RowKey) -> Finding | None:
        match key.kind:
            case RowKind.TURN:
                return self._of_turn(self._turns.get(key.id))
            case RowKind.RUN:
                return self._of_run(self._runs.get(key.id))
            case RowKind.CALL:
                return self._of_call(self._calls.get(key.id))
            case RowKind.SUSPENSION:
                return self._of_question(self._questions.get(key.id))
            case RowKind.DELIVERY:
                return self._of_delivery(self._deliveries.get(key.id))
            case RowKind.PULSE:
                return self._of_work(self._works.get(key.id))
            case RowKind.CHANNEL:
                return self._of_channel(self._channels.get(key.id))
            case RowKind.THREAD:
                return None

    def _of_turn(self, row: WaitRow | None) -> Finding | None:
        if row is None or row["status"] == TurnStatus.DONE:
            return None
        if row["status"] == TurnStatus.ACTIVE:
            finding = self._of_run(self._runs.get(row["run_id"]))
            return None if finding is None else finding.of(RowKind.TURN, row["id"])
        return of_queued_turn(self._queued_turn(row), self._sources.clock)

    def _queued_turn(self, row: WaitRow) -> QueuedTurn:
        ahead, or_more = self._ahead(row)
        sent_at = row["nudge_at"] - fairness.RESEND_BUSY
        group = self._groups[Group(row["grp"])]
        return QueuedTurn(
            id=row["id"], thread_id=row["thread_id"], agent=row["agent"], tenant=row["tenant"], ready=row["ready"],
            steers=bool(row["steers"]), queued_at=row["queued_at"], due_at=row["due_at"], not_before=row["not_before"],
            deadline=row["deadline"], sent_at=max(row["queued_at"], sent_at), lost_at=row["nudge_at"],
            is_unwanted=bool(row["cancel_asked"]), line=self._line(row), group=group, ahead=ahead,
            ahead_or_more=or_more,
        )  # fmt: skip

    def _line(self, row: WaitRow) -> LineState:
        head, opened = self._heads.get(row["thread_id"]), self._open_on.get(row["thread_id"])
        if opened is None:
            return LineState(head=head)
        return LineState(
            open_run=opened["id"], open_turn=opened["turn_id"], run_status=RunStatus(opened["status"]),
            run_reason=Reason(opened["reason"]) if opened["reason"] else None, head=head,
        )  # fmt: skip

    def _ahead(self, row: WaitRow) -> tuple[int, bool]:
        """About how many turns start before it: its own tenant's that are due before it, and of each other tenant as
        many as then have had their turn. True: there may be more.
        """
        tenants = self._by_tenant.get(Group(row["grp"]))
        own = self._own_before.get(row["id"], 0)
        if tenants is None:
            return 0, False
        others = [number for tenant, number in tenants.items() if tenant != row["tenant"]]
        or_more = own > waits.MOST_AHEAD or len(tenants) >= waits.MOST_TENANTS
        rounds = own if not others else own + (row["tenant"] != self._groups[Group(row["grp"])].next_tenant)
        return min(own, waits.MOST_AHEAD) + sum(min(number, rounds) for number in others), or_more

    # runs

    def _of_run(self, row: WaitRow | None) -> Finding | None:
        if row is None or row["status"] not in OPEN_RUN:
            return None
        return of_run(self._open_run(row), self._sources.clock)

    def _open_run(self, row: WaitRow) -> OpenRun:
        group, status = Group(row["grp"]), RunStatus(row["status"])
        in_round, in_flight = self._round(row)
        holder, is_lost = self._holder(row)
        is_waiting = status is RunStatus.WAITING
        opened = row["step_opened"] or row["started_at"]
        hold = self._holds.get(row["turn_id"]) if row["reason"] == Reason.HELD else None
        return OpenRun(
            id=row["id"], turn_id=row["turn_id"], agent=row["agent"], group=group, status=status,
            is_held=row["reason"] == Reason.HELD, is_stalled=bool(row["stalled"]),
            since=(row["rested_since"] or opened) if is_waiting else max(opened, row["started_at"]),
            lease_until=row["lease_until"], resends=row["resends"], holder=holder, is_holder_lost=is_lost,
            backs_off_until=self._marks.get(_work_key(row), NO_MARK).paused_until,
            is_served=self._fleet.serves(group.queue), in_flight=in_flight, round_size=max(in_round, len(in_flight)),
            questions=self._questions_of(row["id"]),
            hold=None if hold is None else _hold(hold),
        )  # fmt: skip

    def _round(self, run: WaitRow) -> tuple[int, tuple[OpenCall, ...]]:
        """How many calls its open step has, and those that are not settled."""
        if run["status"] != RunStatus.RUNNING:
            return 0, ()
        since = run["step"] if run["replay_from"] is None else run["replay_from"]
        rows = [row for row in self._calls.values() if row["run_id"] == run["id"]]
        of_step = [row for row in rows if run["step"] in {row["step"], row["replayed_at"]}]
        in_flight = [
            row for row in rows
            if row["step"] >= since and row["lease_until"] is not None and row["status"] in _IN_FLIGHT
        ]  # fmt: skip
        in_flight.sort(key=lambda row: (row["step"], row["place"]))
        return len(of_step), tuple(self._call(row) for row in in_flight)

    def _holder(self, run: WaitRow) -> tuple[str | None, bool]:
        """Which process calls the model, by Redis or by the row, and whether it is gone or has lost its lease."""
        if run["status"] != RunStatus.RUNNING:
            return None, False
        alive = self._marks.get(_work_key(run), NO_MARK).holder
        if alive is not None:
            return alive, alive in self._fleet.gone
        claimed = run["claim_worker"]
        is_late = run["lease_until"] is not None and run["lease_until"] <= self._sources.now
        return claimed, claimed is not None and (claimed in self._fleet.gone or is_late)

    @cached_property
    def _marks(self) -> Mapping[str, WorkMark]:
        at_work = [_work_key(run) for run in self._runs.values() if run["status"] == RunStatus.RUNNING]
        return self._sources.locks.marks(at_work) if at_work else {}

    # calls and questions

    def _of_call(self, row: WaitRow | None) -> Finding | None:
        if row is None or row["status"] not in OPEN_CALL:
            return None
        return of_call(self._call(row), self._sources.clock)

    def _call(self, row: WaitRow) -> OpenCall:
        run = self._runs[row["run_id"]]
        group, asked = Group(run["grp"]), self._questions.get(row["suspension_id"] or "")
        status = CallStatus(row["status"])
        return OpenCall(
            id=row["id"], run_id=run["id"], turn_id=run["turn_id"], step=row["step"], place=row["place"],
            tool=row["tool"], effect=Effect(row["effect"]), status=status, worker=row["worker"],
            is_worker_gone=row["worker"] in self._fleet.gone, lease_until=row["lease_until"],
            started_at=row["started_at"], sent_at=run["step_opened"] or run["started_at"], resends=row["resends"],
            stays_here=(row["placed"] or "").startswith(HERE) and not row["resends"], group=group,
            is_served=self._fleet.serves(group.tools_queue),
            question=self._question(asked) if asked is not None and status is CallStatus.SUSPENDED else None,
            behind=self._suspended_before(row),
        )  # fmt: skip

    def _suspended_before(self, row: WaitRow) -> str | None:
        ahead = [
            other for other in self._calls.values()
            if other["run_id"] == row["run_id"] and other["step"] == row["step"] and other["place"] < row["place"]
            and other["status"] in OPEN_CALL
        ]  # fmt: skip
        suspended = [other for other in ahead if other["status"] == CallStatus.SUSPENDED]
        return max(suspended or ahead, key=lambda other: int(other["place"]))["id"] if ahead else None

    def _questions_of(self, run_id: str) -> tuple[OpenSuspension, ...]:
        """Oldest first."""
        rows = [row for row in self._questions.values() if row["run_id"] == run_id and row["status"] in _UNSETTLED]
        return tuple(self._question(row) for row in sorted(rows, key=lambda row: (row["created_at"], row["id"])))

    def _of_question(self, row: WaitRow | None) -> Finding | None:
        if row is None or row["status"] not in _UNSETTLED:
            return None
        return of_suspension(self._question(row), self._sources.clock)

    def _question(self, row: WaitRow) -> OpenSuspension:
        child = self._children.get(row["call_id"])
        return OpenSuspension(
            id=row["id"], call_id=row["call_id"], run_id=row["run_id"], turn_id=self._runs[row["run_id"]]["turn_id"],
            agent=row["agent"], tool=row["tool"], why=Why(row["why"]), status=SuspensionStatus(row["status"]),
            created_at=row["created_at"], expires_at=row["expires_at"], on_expiry=OnExpiry(row["on_expiry"]),
            is_overdue=row["escalated_at"] is not None, needs_payload=bool(row["has_schema"]),
            child_turn=child["id"] if child else None,
            child_agent=child["agent"] if child else None,
            child_is_done=child is not None and child["status"] == TurnStatus.DONE,
        )  # fmt: skip

    # what is outside turns

    def _of_delivery(self, row: WaitRow | None) -> Finding | None:
        if row is None or row["status"] == DeliveryStatus.SENT:
            return None
        bus: dict[str, Any] = dict(self._bus or {})
        reply = UnsentReply(
            id=row["id"], turn_id=row["turn_id"], to=shown(row["target"]), status=DeliveryStatus(row["status"]),
            attempts=row["attempts"], error=row["error"], created_at=row["created_at"], next_at=row["next_at"],
            dead_at=row["dead_at"], worker=row["claim_worker"] if row["claim_token"] else None,
            behind=row["oldest"] if row["oldest"] != row["id"] else None,
            is_on_bus=row["position"] <= bus.get("position", 0),
            bus_error=bus.get("error") if bus.get("failures") else None, bus_since=bus.get("moved_at"),
            is_served=self._fleet.serves(DELIVERY_QUEUE),
        )  # fmt: skip
        return of_delivery(reply, self._sources.clock)

    def _of_work(self, row: PulseRow | None) -> Finding | None:
        if row is None or (row.state is not PulseState.LIVE and not row.open):
            return None
        since = row.ended_at or row.last_slot or row.anchor or self._sources.now
        return of_work(LiveWork(row=row, since=since), self._sources.clock)

    def _of_channel(self, row: Mapping[str, Any] | None) -> Finding | None:
        if row is None:
            return None
        look = ChannelLook(
            name=row["name"], holder=row["holder"], lease_until=row["lease_until"], looked_at=row["looked_at"],
            failures=row["failures"], error=row["error"], next_look=row["next_look"],
        )  # fmt: skip
        return of_channel(look, self._sources.clock)


_UNSETTLED = frozenset({SuspensionStatus.OPEN.value, SuspensionStatus.DECIDED.value})
_IN_FLIGHT = frozenset({CallStatus.NEW.value, CallStatus.RUNNING.value, CallStatus.RESUMING.value})


def _by_kind(keys: Iterable[RowKey]) -> dict[RowKind, list[str]]:
    by_kind: dict[RowKind, list[str]] = {kind: [] for kind in RowKind}
    for key in keys:
        by_kind[key.kind].append(key.id)
    return by_kind


def _by_id(rows: Sequence[WaitRow]) -> dict[str, WaitRow]:
    return {row["id"]: row for row in rows}


def _hold(row: WaitRow) -> HoldState:
    return HoldState(
        drive=Drive(row["drive"]), is_parked=bool(row["parked"]), held_until=row["held_until"],
        on_held=OnHeld(row["on_held"]), has_failed=bool(row["has_failed"]),
    )  # fmt: skip


def _work_key(run: WaitRow) -> str:
    """As core/records.Run names the model call that may be under way."""
    step = run["step"] if run["phase"] == Phase.INFERENCE else run["step"] + 1
    return f"{run['id']}:{run['epoch']}:{step}"


def work_key(name: str) -> tuple[WorkKind, str] | None:
    """As `named` writes it. The key of the will is in its row."""
    kind, _, key = name.partition(":")
    return (WorkKind(kind), key) if kind in set(WorkKind) and key else None
