"""Probes of the processes that carry out work: who lives, what each serves, its version and its clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from importlib.metadata import version

from chordage.orchestrator.core.agent_versions import SHOWN
from chordage.orchestrator.core.doctor import ProbeAnswer, Symptom, error, warning
from chordage.orchestrator.core.groups import ALL_QUEUES, DELIVERY_QUEUE, SYSTEM_QUEUE
from chordage.orchestrator.core.text import counted
from chordage.orchestrator.gateways.redis_state import queue_lengths, read_state
from chordage.orchestrator.store import diagnosis
from chordage.orchestrator.store.diagnosis import SeenProcess
from chordage.workers.doctor.context import SKEW, DoctorContext

SILENT = timedelta(minutes=1)  # a process that has not shown itself for so long serves no queue
NEEDED = (SYSTEM_QUEUE, DELIVERY_QUEUE)  # by every fleet
LISTED = 5


def look_at_processes(context: DoctorContext) -> ProbeAnswer:
    """A process whose last sign of life looks old may be silent, or have a clock that is behind: it is looked at a
    second time, when it must have shown itself again.
    """
    first, now = _present(context), _database_now(context)
    late = timedelta(seconds=3 * context.settings.presence)
    doubtful = {row.id: row.seen_at for row in first if row.seen_at < now - late}
    rows = first
    if any(now - seen_at < SILENT for seen_at in doubtful.values()):
        time.sleep(1.5 * context.settings.presence)
        rows, now = _present(context), _database_now(context)
    moved = {row.id for row in rows if row.id in doubtful and row.seen_at != doubtful[row.id]}
    alive = [row for row in rows if row.seen_at >= now - SILENT or row.id in moved]
    symptoms = [
        *_of_clocks(rows, doubtful, moved, now),
        *_of_silence(rows, doubtful.keys() - moved, now),
        *_of_versions(alive),
        *_of_agents(context, alive),
        *_of_queues(context, alive),
    ]
    number = counted(len(alive), "process", "processes")
    releases = Counter(row.version or "not known" for row in alive)
    side_by_side = (
        "".join(f", {n} of {release}" for release, n in sorted(releases.items())) if len(releases) > 1 else ""
    )
    return ProbeAnswer(summary=f"{number}{side_by_side}", symptoms=tuple(symptoms))


def _present(context: DoctorContext) -> Sequence[SeenProcess]:
    with context.store.read() as tx:
        return [row for row in diagnosis.processes_on_record(tx) if row.gone_at is None]


def _database_now(context: DoctorContext) -> datetime:
    with context.store.read() as tx:
        return diagnosis.clock(tx) or context.now()


def _of_clocks(
    rows: Sequence[SeenProcess], doubtful: Mapping[str, datetime], moved: set[str], now: datetime
) -> Iterator[Symptom]:
    for row in rows:
        ahead = row.seen_at - now
        if ahead > SKEW or (row.id in moved and row.id in doubtful):
            side = "ahead of" if ahead > SKEW else "behind"
            text = f"the clock of {row.id} is {abs(ahead.total_seconds()):.0f} s {side} that of the database."
            yield error("clock_skew", row.id, text, "timedatectl status")


def _of_silence(rows: Sequence[SeenProcess], ids: set[str], now: datetime) -> Iterator[Symptom]:
    silent = [row for row in rows if row.id in ids]
    if silent:
        since = min(row.seen_at for row in silent)
        text = (
            f"{counted(len(silent), 'process has', 'processes have')} not shown a sign of life for "
            f"{(now - since).total_seconds():.0f} s, and no other process has noticed: "
            f"{_listed(row.id for row in silent)}."
        )
        yield warning("process_silent", silent[0].id, text, "chordage status", since)


def _of_versions(alive: Sequence[SeenProcess]) -> Iterator[Symptom]:
    own = version("chordage")
    others: dict[str, list[str]] = {}
    for row in alive:
        if row.version not in {own, None}:
            others.setdefault(str(row.version), []).append(row.id)
    for other, ids in sorted(others.items()):
        text = f"{_listed(ids)} {'runs' if len(ids) == 1 else 'run'} Chordage {other}, and this is {own}."
        yield warning("other_version", ids[0], text, "chordage stop && chordage start")


def _of_agents(context: DoctorContext, alive: Sequence[SeenProcess]) -> Iterator[Symptom]:
    """A file that was changed just now is noticed by one process before another: they are looked at a second time."""
    if not _differing(alive):
        return
    time.sleep(2.5 * context.settings.presence)
    ids = {row.id for row in alive}
    for name, by_digest in sorted(_differing([row for row in _present(context) if row.id in ids]).items()):
        parts = [f"{digest[:SHOWN]} in {_listed(ids)}" for digest, ids in sorted(by_digest.items())]
        text = (
            f"processes use different versions of agent {name}: {'; '.join(parts)}. Start those again that began "
            "before its tools were changed, and give every machine the same files."
        )
        yield warning("agent_versions", name, text, "chordage stop && chordage start")


def _differing(alive: Sequence[SeenProcess]) -> dict[str, dict[str, list[str]]]:
    """Of the agents of which more than one version is in use: the processes by digest."""
    used: dict[str, dict[str, list[str]]] = {}
    for row in alive:
        for name, digest in (row.agents or {}).items():
            used.setdefault(name, {}).setdefault(digest, []).append(row.id)
    return {name: by_digest for name, by_digest in used.items() if len(by_digest) > 1}


def _of_queues(context: DoctorContext, alive: Sequence[SeenProcess]) -> Iterator[Symptom]:
    """Queues that nothing takes messages from. Those that this version does not know are those of other apps."""
    lengths = _lengths(context)
    waiting = sum(lengths.values())
    if not alive:
        text = f"no process carries out work; {counted(waiting, 'message')} in the queues." if waiting else (
            "no process carries out work: what comes in is stored, and waits."
        )  # fmt: skip
        yield error("no_worker", "fleet", text, "chordage start", _last_seen(context))
        return
    if any(row.queues is None for row in alive):
        return  # it may serve any of them
    served = {queue for row in alive for queue in (row.queues or "").split(",")}
    for queue in ALL_QUEUES:
        if queue in served or not (lengths.get(queue) or queue in NEEDED):
            continue
        held = f", in which {counted(lengths[queue], 'message')} wait" if lengths.get(queue) else ""
        text = f"no worker takes messages from the queue {queue}{held}."
        yield error("queue_without_worker", queue, text, f"chordage worker --queues {queue}")


def _lengths(context: DoctorContext) -> dict[str, int]:
    if context.redis is None:
        return {}
    return queue_lengths(context.redis, ALL_QUEUES, prefix=context.settings.broker_prefix)


def _last_seen(context: DoctorContext) -> datetime | None:
    with context.store.read() as tx:
        rows = diagnosis.processes_on_record(tx)
    return max((row.seen_at for row in rows), default=None)


def _listed(names: Iterable[str]) -> str:
    each = list(names)
    more = f" and {len(each) - LISTED} more" if len(each) > LISTED else ""
    return f"{', '.join(each[:LISTED])}{more}"


def look_at_clocks(context: DoctorContext) -> ProbeAnswer:
    """Of the database and of Redis, beside that of this machine."""
    symptoms: list[Symptom] = []
    begun = context.now()
    with context.store.read() as tx:
        of_database = diagnosis.clock(tx)
    if of_database is not None:
        symptoms += _of_clock("the database", of_database, begun, context.now())
    if context.redis is not None:
        begun = context.now()
        symptoms += _of_clock("Redis", read_state(context.redis).now, begun, context.now())
    return ProbeAnswer(summary=f"within {SKEW.total_seconds():g} s", symptoms=tuple(symptoms))


def _of_clock(name: str, told: datetime, begun: datetime, ended: datetime) -> Iterator[Symptom]:
    """It was read at some moment between the two."""
    away = max(begun - told, told - ended)
    if away > SKEW:
        side = "ahead of" if told > ended else "behind"
        text = f"the clock of {name} is {away.total_seconds():.0f} s {side} that of this machine."
        yield error("clock_skew", name, text, "timedatectl status")
