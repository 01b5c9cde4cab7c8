"""Bus and deliveries with real processes: Redis is away, the receiver fails, workers are killed. Nothing that is
finished changes, both catch up in order, and no reply leaves twice by its key.
"""

from __future__ import annotations

import os
import time

import pytest
from redis import Redis

from support.bus import WebReceiver
from support.rig import Plan
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

# By hand: BUS_DRILL=20 for an outage of 20 s, with more turns; BUS_DRILL_ON=sqlite on the other database.
OUTAGE = float(os.environ.get("BUS_DRILL", "0.5"))
IS_DRILL = OUTAGE >= 5
TURNS = 200 if IS_DRILL else 8
QUICK = {
    "project": 0.3, "delivery_first": 0.3, "delivery_longest": 1.0, "delivery_timeout": 1.0, "delivery_attempts": 200,
    "webhook_allow": "127.0.0.0/8", "webhook_secret": "whsec_c2VjcmV0", "log_level": "WARNING",
}  # fmt: skip


@pytest.fixture
def receiver():
    made = WebReceiver()
    yield made
    made.close()


def is_quiet(rig):
    row = rig.rows("projection")
    top = max((entry["id"] for entry in rig.rows("journal")), default=0)
    return bool(row) and row[0]["position"] >= top and {one["status"] for one in rig.rows("outbox")} <= {"sent"}


def entries(rig, name=""):
    with Redis.from_url(rig.broker.url, decode_responses=True) as client:
        return client.xrange(f"chordage:bus{name}")


@pytest.mark.postgres
def test_what_leaves_survives_redis_receivers_and_workers(make_rig, migrated_database_url, receiver):
    rig = make_rig(migrated_database_url(os.environ.get("BUS_DRILL_ON", "postgres")), appendonly=False, **QUICK)
    workers = [rig.worker(f"turns-{n}", "--role", "all", "--concurrency", "8") for n in range(2)]
    rig.ready()

    def submit(name):
        for n in range(TURNS):
            rig.submit(Plan(id=f"{name}{n}", rounds=0), f"t{n % 4}", reply_target={"url": f"{receiver.url}/in"})

    def supervised():
        """Of a few turns one worker is enough, which ends itself where Celery has stopped to listen to Redis."""
        for worker in workers if IS_DRILL else workers[1:]:
            if not worker.alive:
                worker.start()

    receiver.status = 503
    submit("a")
    rig.wait_until_done()
    until(lambda: len(receiver.requests) >= 4, "the receiver is asked")
    finished = rig.rows("turns")
    workers[0].kill()
    time.sleep(OUTAGE)  # the fault itself
    rig.broker.kill()
    receiver.status = 200
    time.sleep(OUTAGE)  # the fault itself: no Redis
    rig.broker.start()
    submit("b")
    supervised()
    until(lambda: supervised() or receiver.taken.total() >= 3, "deliveries continue")
    if IS_DRILL:
        for worker in workers:
            worker.kill()
    rig.wait_until_done(meanwhile=supervised)
    until(lambda: supervised() or is_quiet(rig), "bus and deliveries have caught up", patience=180, pause=0.2)

    turns = {row["id"]: row for row in rig.rows("turns")}
    assert [turns[row["id"]] for row in finished] == finished
    assert set(receiver.taken) == set(turns)
    for thread, keys in receiver.order.items():
        by_arrival = {row["arrival"]: row["id"] for row in turns.values() if row["thread_id"] == thread}
        assert keys == [by_arrival[arrival] for arrival in sorted(by_arrival)]
    ids = [tuple(map(int, number.split("-"))) for number, _ in entries(rig)]
    assert ids == sorted(set(ids))
    ended = [fields["turn"] for _, fields in entries(rig) if fields["kind"] == "turn.ended"]
    assert sorted(ended) == sorted(turns)
    print(len(receiver.requests), "requests,", sum(n > 1 for n in receiver.taken.values()), "keys seen again")
