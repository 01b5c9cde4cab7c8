"""Every way in which Celery is known to lose or double the callback of a chord, provoked once.

What is expected each time: nothing changes but time. Not provoked, because our rounds cannot come to it: an empty
header (a round in which nothing may run is passed without a chord), a header that retries itself (`tools.call` never
does), a nested group, a header whose name no worker knows (there is one name, and a worker that knows our bodies knows
it), and `worker_deduplicate_successful_tasks` (it is off). The loss of Redis is in test_redis_faults.py.
"""

from __future__ import annotations

import time

import pytest

from support.postman import TO_WORKERS, TOOL_QUEUES, TURN_QUEUES, Postman
from support.rig import Plan, Rig
from support.rig_checks import check_rig
from support.valkey import WatchedValkey
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

# Long enough that no worker that lives loses its own, also while other tests have the processors: it would ask its
# model again, which is right, and more than time would have changed.
LEASE = 6

# what the postman does with the three headers of a round


def lose_one(postman, letters):
    return letters[:1] + letters[2:]


def lose_all(postman, letters):
    return []


def deliver_twice(postman, letters):
    return [letter for letter in letters for _ in range(2)]


def another_value_first(postman, letters):
    """The headers return before their calls ran, so the body comes at once."""
    return [*(letter.with_arguments(calls=[]) for letter in letters), *letters]


def another_value_last(postman, letters):
    return [*letters, *(letter.with_arguments(calls=[]) for letter in letters)]


def raise_in_one(postman, letters):
    """The header itself fails."""
    return [letters[0].with_arguments(calls=None), *letters]


def raise_in_all(postman, letters):
    return [*(letter.with_arguments(calls=None) for letter in letters), *letters]


def spoil_one(postman, letters):
    return [letters[0].undecodable(), *letters[1:]]


def forget_the_chord(postman, letters):
    """What Redis keeps of a chord is gone before its last header returns."""
    postman.put(TO_WORKERS, letters[:1])
    kept = until(lambda: postman.redis.keys(f"*{letters[0].group}*"), "the first header has returned")
    assert postman.redis.delete(*kept) == 1
    return letters[1:]


HEADERS = [
    lose_one,
    lose_all,
    deliver_twice,
    another_value_first,
    another_value_last,
    raise_in_one,
    raise_in_all,
    spoil_one,
    forget_the_chord,
]

# ... and with the body


def lose_body(postman, letters):
    return []


def deliver_body_twice(postman, letters):
    return letters * 2


def spoil_body(postman, letters):
    return [letters[0].undecodable()]


BODIES = [lose_body, deliver_body_twice, spoil_body]
REVOKED = ["revoke_header", "revoke_body"]
AT_THE_SAME_TIME = {"deliver_twice"}  # two workers may then both start what may run twice by its own word
ROWS = ["nothing_lost", *(trick.__name__ for trick in (*HEADERS, *BODIES)), *REVOKED]


@pytest.fixture(scope="module")
def rig(tmp_path_factory, databases, valkey_program):
    """All rounds of this table at once: each waits for a lease, and they may as well wait together."""
    folder = tmp_path_factory.mktemp("chords")
    url = databases.migrated("sqlite")
    with WatchedValkey(folder / "valkey", appendonly=False, program=valkey_program) as broker:
        rig = Rig(folder, url, broker.url, lease=LEASE, beat=0.5, sweep=0.5, budgets={"will": len(ROWS)})
        try:
            rig.worker("turns", "--queues", TURN_QUEUES, "--pool", "threads", "--concurrency", "16")
            rig.worker("tools", "--queues", TOOL_QUEUES, "--pool", "prefork", "--concurrency", "4")
            rig.ready()
            _carry_out_all(rig)
            yield rig
        finally:
            rig.close()
    databases.drop(url)


def _carry_out_all(rig: Rig) -> None:
    for row in ROWS:
        rig.submit(Plan(id=row, seconds=0.1), row, group="will")
    until(lambda: len(rig.rows("runs")) == len(ROWS), "every turn has its run")
    run_of = {turn["dedupe_key"]: turn["run_id"] for turn in rig.rows("turns")}
    postman = Postman(
        rig.redis,
        rig.settings.broker_prefix,
        header_tricks={run_of[trick.__name__]: trick for trick in HEADERS},
        body_tricks={run_of[trick.__name__]: trick for trick in BODIES},
    )
    postman.header_tricks[run_of["revoke_header"]] = lambda _, letters: _revoke(rig, letters[0].id) or letters
    postman.header_tricks[run_of["revoke_body"]] = lambda _, letters: _revoke(rig, letters[0].body_id) or letters

    def done():
        postman.go_round()
        return rig.unfinished() == 0

    try:
        until(done, "every turn is done", patience=180)
    finally:
        rig.left_tricks = [*postman.header_tricks, *postman.body_tricks]


def _revoke(rig, task_id):
    rig.app.control.revoke(task_id)
    time.sleep(0.3)  # a broadcast: its arrival is not confirmed


@pytest.mark.parametrize("row", ROWS)
def test_nothing_changes_but_time(row, rig):
    turn = next(turn for turn in rig.rows("turns") if turn["dedupe_key"] == row)
    calls = rig.rows("calls", run_id=turn["run_id"])

    assert rig.left_tricks == [], "every trick was played"
    assert turn["disposition"] == "answered"
    assert [call["status"] for call in calls] == ["succeeded"] * 3
    assert rig.answer(turn["id"]).split() == f"done {row}: pure {row}.0.0 unsafe {row}.0.1 idempotent {row}.0.2".split()
    begun = [fact for fact in rig.facts(what="tool", phase="begin") if fact["key"].startswith(turn["run_id"])]
    most = 5 if row in AT_THE_SAME_TIME else 3
    assert len(begun) <= most, "each tool ran once"
    assert [fact["name"] for fact in begun].count("unsafe") == 1
    assert len(rig.facts(what="model", plan=row)) == 2
    took = (turn["done_at"] - turn["queued_at"]).total_seconds()
    assert took < 100, "leases, and not the visibility timeout of an hour"


def test_invariants_hold_after_all_of_it(rig):
    doubled = [turn["run_id"] for turn in rig.rows("turns") if turn["dedupe_key"] in AT_THE_SAME_TIME]
    check_rig(rig, doubled=doubled)
