"""Money: workers are killed inside calls that pay, and still nothing is paid twice.

What an unsafe call did before its worker died is asked of a person, who looks into the book; a reconcilable call looks
there itself; an idempotent one is booked again under the same key.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from collections import Counter

import psutil
import pytest

from support.invariants import check_all
from support.processes import descendants
from support.rig import Plan, Rig, whole_lines
from support.rig_inbox import answer, inbox
from support.rig_worker import Worker

pytestmark = [pytest.mark.redis, pytest.mark.slow]

TURNS = 20
MOST = 10 * TURNS
LEASE = 6  # seconds: a process that lives does not lose its own, also where other tests have the processors
EVERY = 0.5  # seconds between two kills, as far as there is a process left to kill
AGAIN = 2  # times at most the same call is hit: each time it waits for its lease
KILLS = 12  # then there is peace, once every wanted moment was hit: a slow machine has to come to an end as well


class Murders:
    """Processes are lost inside their calls, now and then with their whole worker. A supervisor starts others.

    Each tool is hit before its line in the book and behind it, then whichever comes.
    """

    def __init__(self, rig: Rig, *tools: str) -> None:
        self._rig = rig
        self.wanted = {(tool, booked) for tool in tools for booked in (False, True)}
        self._hit: Counter[str] = Counter()  # by call
        self._chance = random.Random(11)
        self._next = time.monotonic()
        self.kills = 0

    def go_on(self) -> None:
        self._rig.restart_the_dead()
        if time.monotonic() < self._next or (self.kills >= KILLS and not self.wanted):
            return
        calls = self._open_calls()
        calls = [call for call in calls if self._moment(call) in self.wanted] or ([] if self.wanted else calls)
        if calls:
            self._next = time.monotonic() + EVERY
            with contextlib.suppress(psutil.NoSuchProcess):
                self._kill(self._chance.choice(calls))

    def _open_calls(self) -> list[dict]:
        children = {child.pid for worker in self._workers() for child in descendants(worker.pid)}
        begun = self._rig.facts(what="tool", phase="begin")
        calls = [call for call in begun if call["pid"] in children and not self._has_ended(call)]
        return [call for call in calls if self._hit[call["key"]] < AGAIN]

    def _has_ended(self, call: dict) -> bool:
        return bool(self._rig.facts(what="tool", phase="end", key=call["key"], pid=call["pid"]))

    def _workers(self) -> list[Worker]:
        return [worker for worker in self._rig.workers.values() if worker.alive]

    def _moment(self, call: dict) -> tuple[str, bool]:
        return call["name"], call["key"] in booked(self._rig)

    def _kill(self, call: dict) -> None:
        """What the ledger and the book have of the call behind its process's end is final."""
        process = psutil.Process(call["pid"])
        worker = next((one for one in self._workers() if one.pid == process.ppid()), None)
        if worker is not None and self._chance.random() < 0.3:
            worker.kill()
        else:
            process.kill()
        psutil.wait_procs([process], timeout=10)
        self.kills += 1
        self._hit[call["key"]] += 1
        if not self._has_ended(call):
            self.wanted.discard(self._moment(call))


class Accountant:
    """Decides calls with an unknown outcome by a look into the account book."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.answers: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()

    def go_on(self) -> None:
        for row in inbox(self._rig):
            assert row["why"] == "outcome_unknown"
            key = key_of(self._rig.row("calls", id=row["call_id"]))
            paid = key in booked(self._rig)
            payload = {"answer": "result", "result": "paid"} if paid else {"answer": "retry"}
            answer(self._rig, row, payload=payload)
            self.answers[payload["answer"]] += 1
            self.retried[key] += not paid


def key_of(call: dict) -> str:
    return f"{call['run_id']}:{call['ask_id']}:{call['generation']}"


def booked(rig: Rig) -> Counter[str]:
    """How often each call is in the book."""
    return Counter(json.loads(line)["key"] for line in whole_lines(rig.room / "book.jsonl"))


def shop(make_rig, url: str) -> Rig:
    """Nothing is called poison here, however many workers it has seen die."""
    rig = make_rig(url, lease=LEASE, beat=1, sweep=1, poison_after=10_000, log_level="WARNING")
    rig.worker("turns", "--role", "turns", "--concurrency", "32")
    for name in ("till-1", "till-2"):
        rig.worker(name, "--role", "tools", "--concurrency", "3")
    rig.ready()
    return rig


def sell(rig: Rig, murders: Murders, accountant: Accountant, *tools: str) -> None:
    """Until every wanted moment was hit, and at least this many turns."""

    def meanwhile() -> None:
        murders.go_on()
        accountant.go_on()

    sold = 0
    for sold in itertools.takewhile(lambda sold: sold == 0 or murders.wanted, itertools.count(0, TURNS)):
        assert sold < MOST, f"no process was lost in these moments: {murders.wanted}"
        for n in range(sold, sold + TURNS):
            rig.submit(Plan(id=f"p{n}", tools=(tools[n % len(tools)],), seconds=0.8), f"t{n}", agent="payer")
        rig.wait_until_done(meanwhile=meanwhile)
    turns = sold + TURNS
    check_all(rig.runtime.store)
    assert Counter(turn["disposition"] for turn in rig.rows("turns")) == {"answered": turns}
    assert Counter(run["reason"] for run in rig.rows("runs")) == {"natural_end": turns}
    assert Counter(call["status"] for call in rig.rows("calls")) == {"succeeded": turns}


@pytest.mark.postgres
def test_checking_the_account_book_prevents_a_second_payment(make_rig, migrated_database_url):
    rig = shop(make_rig, migrated_database_url("postgres"))
    murders, accountant = Murders(rig, "charge"), Accountant(rig)

    sell(rig, murders, accountant, "charge")

    begun = Counter(fact["key"] for fact in rig.facts(what="tool", phase="begin"))
    print(f"{murders.kills} kills, {begun.total()} begun, answers {dict(accountant.answers)}")
    assert booked(rig) == {key_of(call): 1 for call in rig.rows("calls")}
    assert accountant.answers["result"] > 0, "a worker died after its line in the book"
    assert accountant.answers["retry"] > 0, "a worker died before it"
    unasked = {key: count for key, count in begun.items() if count > 1 + accountant.retried[key]}
    assert unasked == {}, "nothing ran again without a person's word"
    assert {row["status"] for row in rig.rows("suspensions")} == {"settled"}


def test_calls_that_can_be_looked_up_or_repeated_need_no_person(make_rig, migrated_database_url):
    rig = shop(make_rig, migrated_database_url("sqlite"))
    murders, accountant = Murders(rig, "charge_on_record", "charge_by_key"), Accountant(rig)

    sell(rig, murders, accountant, "charge_on_record", "charge_by_key")

    begun = Counter(fact["name"] for fact in rig.facts(what="tool", phase="begin"))
    print(f"{murders.kills} kills, begun {dict(begun)}, booked {booked(rig).total()}")
    assert rig.rows("suspensions") == []
    for call in rig.rows("calls"):
        times = booked(rig)[key_of(call)]
        assert times == 1 or (times > 1 and call["tool"] == "charge_by_key"), call
    called = Counter(call["tool"] for call in rig.rows("calls"))
    assert all(begun[tool] > called[tool] for tool in called), "some of both were cut off and begun again"
