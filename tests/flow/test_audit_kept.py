"""How long it is kept who did what: rescue forgets what is older, a bounded part at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from chordage.orchestrator import stages
from chordage.orchestrator.core.audit import CLI, Audited
from chordage.orchestrator.stages import rescue
from chordage.orchestrator.store import audit

DAY = timedelta(days=1)


def record(world, about, *, days_ago=0):
    with world.store.write() as tx:
        audit.record(tx, CLI, Audited.CANCELLED, about, now=world.runtime.now() - days_ago * DAY)


def kept(world):
    return sorted(row["about"] for row in world.rows("caller_audit"))


def test_a_sweep_forgets_what_is_older_than_the_settings_keep(world):
    for days_ago in (0, 1, 2, 3):
        record(world, f"{days_ago} days", days_ago=days_ago)

    stages.rescue(replace(world.runtime, audit_keep=2 * DAY))

    assert kept(world) == ["0 days", "1 days", "2 days"]


def test_one_sweep_deletes_so_many_at_most(world, monkeypatch):
    monkeypatch.setattr(rescue_module(), "BATCH", 2)
    for number in range(5):
        record(world, f"old {number}", days_ago=10 - number)
    rt = replace(world.runtime, audit_keep=DAY)

    left = []
    for _ in range(3):
        stages.rescue(rt)
        left.append(kept(world))

    assert left == [["old 2", "old 3", "old 4"], ["old 4"], []]


def rescue_module():
    import sys

    return sys.modules[rescue.__module__]


def test_without_a_limit_everything_is_kept(world):
    record(world, "ancient", days_ago=10_000)

    world.sweep()

    assert kept(world) == ["ancient"]
