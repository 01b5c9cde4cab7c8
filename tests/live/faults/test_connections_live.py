"""Workers under load hold no more connections to PostgreSQL than they are said to."""

from __future__ import annotations

from collections import Counter

import psutil
import pytest
from sqlalchemy.engine import make_url

from chordage.workers import connections
from support.rig import Plan

pytestmark = [pytest.mark.redis, pytest.mark.postgres, pytest.mark.slow]

TURNS = 60
PROCESSES = 3


def test_no_process_holds_more_connections_than_the_table_allows(make_rig, migrated_database_url):
    url = migrated_database_url("postgres")
    rig = make_rig(url, log_level="WARNING")
    turns = rig.worker("turns", "--role", "turns")
    tools = rig.worker("tools", "--role", "tools", "--concurrency", str(PROCESSES))
    rig.ready()
    most: Counter[str] = Counter()
    port = make_url(url).port

    def look():
        children = psutil.Process(tools.pid).children(recursive=True)
        now = {"turns": held(turns.pid, port), "parent": held(tools.pid, port)}
        now["child"] = max((held(child.pid, port) for child in children), default=0)
        for name, number in now.items():
            most[name] = max(most[name], number)

    intents = [rig.admit(Plan(id=f"a{number}", rounds=2, latency=0.01), f"t{number}") for number in range(TURNS)]
    rig.send(intents)
    rig.wait_until_done(meanwhile=look)

    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    assert 1 <= most["turns"] <= connections.of_threads(rig.settings)
    assert 1 <= most["parent"] <= connections.OF_A_PARENT + connections.HEART
    assert 1 <= most["child"] <= connections.OF_A_CHILD


def held(pid: int, port: int) -> int:
    try:
        found = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return 0
    return sum(1 for one in found if one.raddr and one.raddr.port == port and one.status == psutil.CONN_ESTABLISHED)
