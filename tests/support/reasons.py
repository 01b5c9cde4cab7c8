"""Why rows of a world wait, as the views say it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import select

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.groups import ALL_QUEUES
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.core.pulse import WorkKind, named
from chordage.orchestrator.core.why.reasons import RowKey, RowKind, WaitReason
from chordage.orchestrator.store import schema
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views import WaitSources, WhyView
from support.world import World


def sources(world: World, **more: Any) -> WaitSources:
    rt = world.runtime
    made = WaitSources(store=rt.store, now=rt.now(), budgets=rt.budgets, leases=rt.leases, locks=rt.locks)
    return replace(made, **more)


def show_workers(world: World, *queues: str, name: str = "world") -> None:
    """A worker lives that serves these queues, or all of them."""
    process = Process(id=name, machine="here", pid=1, born="then", queues=queues or ALL_QUEUES)
    with world.as_another_process():
        stages.show_presence(world.runtime, [process])


def why(world: World, some_id: object, **more: Any) -> WhyView:
    with world.as_another_process():
        return views.why(sources(world, **more), str(some_id))


def reason(world: World, some_id: object, **more: Any) -> WaitReason:
    view = why(world, some_id, **more)
    assert view.reason is not None, view.text
    return view.reason


def open_rows(store: Store) -> set[RowKey]:
    """Every row that is not terminal."""
    turns, runs, calls = schema.turns.c, schema.runs.c, schema.calls.c
    asked, sent, work = schema.suspensions.c, schema.outbox.c, schema.pulse.c
    settled = ["succeeded", "failed", "cancelled"]
    ids = {
        RowKind.TURN: select(turns.id).where(turns.status != "done"),
        RowKind.RUN: select(runs.id).where(runs.status != "done"),
        RowKind.CALL: select(calls.id).where(calls.status.not_in(settled)),
        RowKind.SUSPENSION: select(asked.id).where(asked.status.in_(["open", "decided"])),
        RowKind.DELIVERY: select(sent.id).where(sent.status != "sent"),
        RowKind.CHANNEL: select(schema.polls.c.name),
    }
    with store.read() as tx:
        keys = {RowKey(kind, str(row_id)) for kind, rows in ids.items() for row_id in tx.execute(rows).scalars()}
        live = tx.execute(select(work.kind, work.key).where(work.state == "live"))
        return keys | {RowKey(RowKind.PULSE, named(WorkKind(row.kind), row.key)) for row in live}


def check_every_open_row_has_a_reason(world: World) -> None:
    """At every moment, and exactly one: the keys of a mapping are unique, and none is missing."""
    with world.as_another_process():
        keys = open_rows(world.store)
        reasons = views.whys(sources(world), keys)
    assert reasons.keys() == keys, f"without a reason: {keys - reasons.keys()}"
    for key, found in reasons.items():
        assert (found.kind, found.id) == key
        assert found.text.endswith((".", "…")), found
        assert found.remedy.command.startswith("chordage "), found
        assert found.since is not None
