"""Workers are killed: at every commit of a turn, and at random under load."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from support import dying_worker
from support.dying_worker import give_order, is_carried_out
from support.rig import Plan, Rig
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

COMMITS = 1 + 1 + 4 + 1  # the start; the round is opened; three calls, one of them claimed before; the end


def dying_rig(rig: Rig) -> Rig:
    order = rig.folder / "order"
    give_order(order, at=10_000, when="after", who="worker")
    program = (dying_worker.__file__,)
    for name, role, size in (
        ("turns-1", "turns", 8),
        ("turns-2", "turns", 8),
        ("tools-1", "tools", 2),
        ("tools-2", "tools", 2),
    ):
        size_and_role = ("--role", role, "--concurrency", str(size))
        rig.worker(name, *size_and_role, program=program, env={"RIG_ORDER": str(order)})
    rig.ready()
    return rig


def test_a_turn_survives_sigkill_at_every_commit_of_it(make_rig, database_url):
    rig = dying_rig(make_rig(database_url, lease=2, beat=0.5, sweep=0.5))
    order = rig.folder / "order"
    met = 0

    for when in ("after", "before"):
        for at in range(1, COMMITS + 1):
            who = "child" if at % 3 == 0 else "worker"
            give_order(order, at=at, when=when, who=who)
            rig.submit(Plan(id=f"{when}-{at}"), f"{when}-{at}")
            rig.wait_until_done(meanwhile=rig.restart_the_dead)
            met += is_carried_out(order)

    assert met == 2 * COMMITS
    assert {row["disposition"] for row in rig.rows("turns")} == {"answered"}
    check_rig(rig)


THREADS, IN_HAND = 100, 150
KINDS = (("pure",), ("unsafe",), ("idempotent", "pure"), ())


class Mischief:
    """Every few seconds a worker is lost with all its processes, and a supervisor starts another in its place."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._chance = random.Random(7)
        self._next = time.monotonic() + 1.0
        self.kills = 0

    def go_on(self) -> None:
        self._rig.restart_the_dead()
        workers = list(self._rig.workers.values())
        if time.monotonic() < self._next or not all(worker.is_ready for worker in workers):
            return
        self._chance.choice(workers).kill()
        self._next = time.monotonic() + self._chance.uniform(0.5, 1.5)
        self.kills += 1


@pytest.mark.parametrize(("placement", "turns", "kills"), [("spread", 500, 4), ("here", 150, 3), ("auto", 150, 3)])
def test_hundreds_of_turns_survive_random_kills(make_rig, database_url, placement, turns, kills):
    # Whoever loses three workers by chance alone is no poison.
    rig = make_rig(database_url, placement=placement, log_level="WARNING", poison_after=100)
    rig.worker("turns-1", "--role", "turns", "--concurrency", "32")
    rig.worker("turns-2", "--role", "turns", "--concurrency", "32")
    rig.worker("tools", "--role", "tools", "--concurrency", "4")
    rig.ready()
    mischief = Mischief(rig)

    # Load for as long as workers are killed, which takes longer where they start slowly.
    for n in itertools.takewhile(lambda n: n < turns or mischief.kills < kills, itertools.count()):
        tools = KINDS[n % len(KINDS)]
        rig.submit(Plan(id=f"p{n}", rounds=bool(tools), tools=tools, latency=0.25), f"t{n % THREADS}")
        until(lambda: _makes_room(rig, mischief), "turns are answered", patience=150)
    rig.wait_until_done(150, meanwhile=mischief.go_on)

    assert len(rig.rows("turns")) == n + 1 >= turns
    runs = rig.rows("runs")
    assert [(run["reason"], run["code"], run["detail"]) for run in runs if run["reason"] != "natural_end"] == []
    assert {turn["disposition"] for turn in rig.rows("turns")} == {"answered"}
    check_rig(rig)


def _makes_room(rig: Rig, mischief: Mischief) -> bool:
    mischief.go_on()
    return rig.unfinished() < IN_HAND
