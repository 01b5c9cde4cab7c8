"""What monitors read of the fleet: the counters as they are stored, and gauges of the rows as they are now."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from chordage.orchestrator.core import metrics as families
from chordage.orchestrator.core.groups import ALL_QUEUES, DELIVERY_QUEUE, SYSTEM_QUEUE, Group
from chordage.orchestrator.core.metrics import OTHER, MetricFamily, SumKey
from chordage.orchestrator.core.status import OPEN_RUN
from chordage.orchestrator.gateways.ports import Queues
from chordage.orchestrator.store import gauges, groups, metrics, projection
from chordage.orchestrator.store.database import Store, Tx

KEPT = 5.0  # seconds
SOON = timedelta(hours=1)
POISON_KEPT = timedelta(hours=24)
LIVES = timedelta(seconds=30)  # since a process showed itself last
_ROLES: Mapping[str, str] = {
    SYSTEM_QUEUE: "system",
    DELIVERY_QUEUE: "delivery",
    **{group.queue: "turns" for group in Group},
    **{group.tools_queue: "tools" for group in Group},
}


class FleetMetrics:
    """Read at most once in KEPT seconds, however many monitors ask. `queues`: of Celery; a queue whose length is not
    known has no sample.
    """

    def __init__(
        self,
        store: Store,
        queues: Queues,
        budgets: Mapping[Group, int],
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._queues = queues
        self._budgets = budgets
        self._now = now
        self._clock = clock
        self._lock = threading.Lock()
        self._until = -math.inf
        self._kept: Mapping[SumKey, float] = {}

    def read(self) -> Mapping[SumKey, float]:
        """Of two that ask at once the second waits for what the first reads."""
        with self._lock:
            if self._clock() >= self._until:
                self._kept = self._read_now(self._now())
                self._until = self._clock() + KEPT
            return self._kept

    def _read_now(self, now: datetime) -> Mapping[SumKey, float]:
        with self._store.read() as tx:
            found: dict[SumKey, float] = dict(metrics.load(tx))
            values = _values(tx, now, self._budgets)
        lengths = self._queues.lengths(ALL_QUEUES)
        values += [(families.QUEUE_MESSAGES, (queue,), number) for queue, number in lengths.items()]
        return found | {SumKey(family.name, labels): value for family, labels, value in values}


Value = tuple[MetricFamily, tuple[str, ...], float]


def _values(tx: Tx, now: datetime, budgets: Mapping[Group, int]) -> list[Value]:
    return [
        *_of_groups(tx, now, budgets),
        *_of_questions(tx, now),
        (families.POISON_RUNS, (), gauges.poison_runs(tx, now - POISON_KEPT)),
        (families.DELIVERIES_PENDING, (), gauges.pending_deliveries(tx)),
        (families.DELIVERIES_DEAD, (), gauges.dead_deliveries(tx)),
        *_of_bus(tx, now),
        *_of_workers(tx, now),
    ]


def _of_groups(tx: Tx, now: datetime, budgets: Mapping[Group, int]) -> list[Value]:
    stored, values = groups.budgets(tx), list[Value]()
    open_runs = {(group, status): number for group, status, number in gauges.open_runs(tx)}
    for group in Group:
        number, since = gauges.queued(tx, group, now)
        budget = stored.get(group)
        values += [
            (families.TURNS_QUEUED, (group,), number),
            (families.OLDEST_QUEUED, (group,), _age(since, now)),
            (families.GROUP_BUDGET, (group,), budgets[group] if budget is None else budget),
        ]
        values += [
            (families.RUNS_OPEN, (group, status), open_runs.get((group, status), 0)) for status in sorted(OPEN_RUN)
        ]
    return values


def _of_questions(tx: Tx, now: datetime) -> list[Value]:
    values: list[Value] = []
    for row in gauges.questions(tx, now, soon=SOON):
        labels = (row["agent"][: families.LONGEST_LABEL], row["why"])
        values += [
            (families.SUSPENSIONS_OPEN, labels, row["number"]),
            (families.OLDEST_SUSPENSION, labels, _age(row["oldest"], now)),
            (families.EXPIRING, labels, row["expiring"]),
        ]
    return values


def _of_bus(tx: Tx, now: datetime) -> list[Value]:
    state = projection.load(tx)
    if state is None:  # without Redis there is no bus
        return []
    return [(families.BUS_LAG, (), _age(projection.oldest_behind(tx, state.mark.position), now))]


def _of_workers(tx: Tx, now: datetime) -> list[Value]:
    served = Counter(queue for listed in gauges.serving(tx, now - LIVES) for queue in listed.split(","))
    known = {queue: served.pop(queue, 0) for queue in ALL_QUEUES}
    values: list[Value] = [(families.WORKERS_UP, (queue, _ROLES[queue]), number) for queue, number in known.items()]
    if served:
        values.append((families.WORKERS_UP, (OTHER, OTHER), served.total()))  # queues that others leave messages in
    return values


def _age(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
