"""Chats while every slot is busy with wills, chores and tasks: they come next, and nothing of the others is repeated.

CHORDAGE_TEST_CROWD=50 makes the crowd fifty times as large, and prints how long chats waited for their model.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from typing import Any

import pytest

from support.rig import Plan, Rig
from support.rig_checks import check_rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

TIMES = int(os.environ.get("CHORDAGE_TEST_CROWD", "1"))
CROWD = {"will": 8 * TIMES, "chore": 8 * TIMES, "task": 4 * TIMES}
CHATS = 50 if TIMES > 1 else 8
TURNS, TOOLS, KEPT = 4, 4, 2
ROUNDS = 2
OPEN = {"chat": 64, "task": 500, "chore": 500, "will": 500}  # so that slots are short, and not budgets


def crowd(rig: Rig) -> None:
    """Rounds of one tool of 0.2 s behind model calls of 0.3 s."""
    intents = []
    for group, number in CROWD.items():
        for n in range(number):
            name = f"{group}:{n}"
            plan = Plan(id=name, rounds=ROUNDS, tools=("unsafe",), seconds=0.2, latency=0.3)
            own = {"group": "will"} if group == "will" else {"origin": group, "sender": "self"}
            intents.append(rig.admit(plan, name, **own))
    rig.send(intents)


def chats(rig: Rig) -> list[float]:
    """From when on each waited in its queue."""
    sent = []
    for n in range(CHATS):
        rig.submit(Plan(id=f"chat-{n}", rounds=0), f"chat-{n}", origin="chat", channel="test")
        sent.append(time.time())
        time.sleep(0.25)  # they come one by one, as people do
    return sent


def begun(rig: Rig) -> dict[str, float]:
    """When the model was first asked for each plan."""
    first: dict[str, float] = {}
    for fact in rig.facts(what="model"):
        first.setdefault(fact["plan"], fact["at"])
    return first


def started_meanwhile(facts: list[dict[str, Any]], since: float, until_: float) -> int:
    others = [fact for fact in facts if not fact["plan"].startswith("chat-")]
    return sum(since < fact["at"] < until_ for fact in others)


def report(waits: list[float]) -> None:
    ranked = sorted(waits)
    p50, p95 = statistics.median(waits), ranked[int(len(ranked) * 0.95) - 1]
    told = f"first model call after p50 {p50:.3f} s, p95 {p95:.3f} s, at most {ranked[-1]:.3f} s"
    print(f"\n{len(waits)} chats among {sum(CROWD.values())} others: {told}; load {os.getloadavg()[0]:.1f}")


def nothing_was_repeated(rig: Rig) -> None:
    asked = Counter((fact["plan"], fact["index"]) for fact in rig.facts(what="model"))
    began = Counter(fact["key"] for fact in rig.facts(what="tool", phase="begin"))
    assert set(asked.values()) == {1}
    assert set(began.values()) == {1}
    assert len(began) == ROUNDS * sum(CROWD.values())
    assert asked.total() == (ROUNDS + 1) * sum(CROWD.values()) + CHATS


@pytest.mark.parametrize(
    ("backend", "reserve"), [("sqlite", 0), pytest.param("postgres", KEPT, marks=pytest.mark.postgres)]
)
def test_a_chat_comes_next_while_all_slots_are_busy(make_rig, migrated_database_url, backend, reserve) -> None:
    rig = make_rig(
        migrated_database_url(backend), budgets=OPEN, reserve=reserve, lease=60, beat=10, log_level="WARNING"
    )
    rig.worker("turns", "--role", "turns", "--concurrency", str(TURNS))
    rig.worker("tools", "--role", "tools", "--concurrency", str(TOOLS))
    if reserve:
        rig.worker("turns-chat", "--role", "turns", "--reserved")
    rig.ready()
    crowd(rig)
    until(lambda: rig.running() >= min(TURNS, sum(CROWD.values())), "every slot is busy")

    sent = chats(rig)
    still_busy = rig.unfinished()
    rig.wait_until_done(180 + 4 * sum(CROWD.values()))

    first, facts = begun(rig), rig.facts(what="model")
    waits = [first[f"chat-{n}"] - sent[n] for n in range(CHATS)]
    report(waits)
    ahead = [started_meanwhile(facts, sent[n], first[f"chat-{n}"]) for n in range(CHATS)]
    assert max(ahead) <= TURNS + 1, f"chats waited for more than one round of one slot: {ahead}"
    assert still_busy
    nothing_was_repeated(rig)
    check_rig(rig)
