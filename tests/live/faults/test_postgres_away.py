"""PostgreSQL is away for longer than a lease: what was in flight meanwhile is kept, and no worker is taken for dead."""

from __future__ import annotations

import time

import psutil
import pytest

from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from support.rig import Plan
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.postgres, pytest.mark.slow]
LEASE, BEAT = 6, 2  # a process that is back judges no lease for a beat, in which a busy machine lets all others renew
OUTAGE = 1.75 * LEASE


def stops_answering(server):
    """Its connections stay, and nothing comes back."""
    postmaster = psutil.Process(server.pid)
    everybody = [*postmaster.children(recursive=True), postmaster]
    for one in everybody:
        one.suspend()

    def resume_all():
        for one in everybody:
            one.resume()

    return resume_all


def is_stopped(server):
    server.stop("immediate")
    return server.start


@pytest.mark.parametrize("go_away", [stops_answering, is_stopped])
def test_reply_and_result_in_flight_outlive_an_outage_longer_than_a_lease(go_away, make_rig, start_postgres):
    server = start_postgres(fsync=True)
    rig = make_rig(migrated(server), lease=LEASE, beat=BEAT, sweep=1, log_level="WARNING")
    agent = rig.room / "agent.toml"
    agent.write_text(agent.read_text().replace('on_unknown = "fail"', 'on_unknown = "ask"'))
    for number in (1, 2):
        rig.worker(f"turns-{number}", "--role", "turns", "--concurrency", "4")
        rig.worker(f"tools-{number}", "--role", "tools", "--concurrency", "1")
    rig.ready()
    rig.submit(Plan(id="call", tools=("unsafe",), seconds=3.0))
    rig.submit(Plan(id="reply", rounds=0, latency=3.0))
    until(lambda: rig.facts(what="tool", phase="begin") and rig.facts(what="model", plan="reply"), "both are at work")

    comes_back = go_away(server)
    over = time.monotonic() + OUTAGE
    until(lambda: time.monotonic() > over, "the outage is longer than a lease")
    comes_back()
    rig.wait_until_done()

    assert len(rig.facts(what="model", plan="reply")) == 1, "the reply in hand was thrown away"
    assert len(rig.facts(what="tool", phase="begin")) == 1
    assert rig.rows("suspensions") == []
    assert {turn["disposition"] for turn in rig.rows("turns")} == {"answered"}
    check_rig(rig)


def migrated(server):
    url = server.create_database()
    store = Store(url)
    schema_version.upgrade(store)
    store.close()
    return url
