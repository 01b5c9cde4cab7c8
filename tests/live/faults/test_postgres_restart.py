"""PostgreSQL is restarted under load: turns wait for it, and none is lost or done twice."""

from __future__ import annotations

import pytest

from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from support.rig import Plan
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.postgres, pytest.mark.slow]

TURNS = 100


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_nothing_is_lost_or_doubled_when_the_database_restarts(mode, make_rig, start_postgres):
    server = start_postgres(fsync=True)
    rig = make_rig(_migrated(server), log_level="WARNING")
    rig.worker("turns-1", "--role", "turns", "--concurrency", "16")
    rig.worker("turns-2", "--role", "turns", "--concurrency", "16")
    rig.worker("tools", "--role", "tools", "--concurrency", "4")
    rig.ready()
    for n in range(TURNS // 2):
        rig.submit(Plan(id=f"a{n}", seconds=0.05, latency=0.1), f"t{n % 20}")
    until(lambda: TURNS // 2 - rig.unfinished() >= 5, "the load is on its way", pause=0.02)

    server.restart(mode)
    for n in range(TURNS // 2):
        rig.submit_surely(Plan(id=f"b{n}", seconds=0.05, latency=0.1), f"t{n % 20}")
    rig.wait_until_done()

    assert all(worker.alive for worker in rig.workers.values()), "a worker outlives its database"
    assert len(rig.rows("turns")) == TURNS
    assert {turn["disposition"] for turn in rig.rows("turns")} == {"answered"}
    check_rig(rig)


def _migrated(server):
    url = server.create_database()
    store = Store(url)
    schema_version.upgrade(store)
    store.close()
    return url
