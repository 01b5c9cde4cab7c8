"""Messages for the same work that come at the same moment, and one that comes while the older one starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.store.statements import PreparedStatement, Row
from support.fakes import spoken
from support.held_commit import HeldCommit
from support.invariants import check_all
from support.world import World

CHORE = {"origin": Origin.CHORE, "sender": Sender.SELF, "thread": "chore:backup"}
AT_ONCE = 8


@pytest.fixture
def crowd(database_url: str) -> Iterator[World]:
    """A world with a connection for each of those who come at once."""
    made = World(Store(database_url, pool_size=AT_ONCE))
    yield made
    made.close()


def trigger(world: World, number: int) -> str:
    message = Message(origin=Origin.CHORE, channel=None, sender=Sender.SELF, thread_id="chore:backup", text=f"{number}")
    admitted, intents = stages.admit(world.runtime, TurnRequest(message=message))
    world.pending += intents
    return admitted.turn_id


def all_at_once(jobs: Sequence[Callable[[], str]]) -> list[str]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [job.result() for job in [pool.submit(job) for job in jobs]]


def test_hundreds_of_triggers_from_all_sides_while_a_chore_runs_are_one_further_turn(crowd: World) -> None:
    crowd.models.script = lambda prompt: spoken("ok")
    crowd.submit("first", **CHORE)
    crowd.deliver(crowd.pending.pop(0))

    came = all_at_once([lambda n=n: trigger(crowd, n) for n in range(200)])
    crowd.run_dry()

    ends = Counter(turn["disposition"] for turn in crowd.rows("turns"))
    assert ends == {"answered": 2, "merged": 199}
    assert len(set(came)) == 200
    assert len(crowd.rows("runs")) == 2
    check_all(crowd.store)


def test_one_key_on_many_threads_keeps_one_queued_turn_without_lock_waits(crowd: World) -> None:
    crowd.models.script = lambda prompt: spoken("ok")
    places = [(f"t{n % 7}", f"k{n % 3}") for n in range(120)]

    all_at_once([lambda at=at: crowd.submit(thread=at[0], coalesce_key=at[1]) for at in places])

    queued = crowd.rows("turns", status="queued")
    assert sorted(turn["coalesce_key"] for turn in queued) == ["k0", "k1", "k2"]
    crowd.run_dry()
    assert Counter(turn["disposition"] for turn in crowd.rows("turns")) == {"answered": 3, "merged": 117}
    check_all(crowd.store)


def test_of_wills_that_come_at_once_one_is_queued(crowd: World) -> None:
    will = {"origin": Origin.WILL, "sender": Sender.SELF, "thread": None}

    all_at_once([lambda: crowd.submit(**will)] * 40)

    ends = Counter(turn["disposition"] for turn in crowd.rows("turns"))
    assert ends == {None: 1, "merged": 39}


def test_the_same_message_from_all_sides_is_one_turn(crowd: World) -> None:
    crowd.submit(**CHORE)

    came = all_at_once([lambda: crowd.submit(**CHORE, dedupe_key="slot")] * 40)

    assert len(set(came)) == 1
    assert len(crowd.rows("turns")) == 2


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize("thread", ["chore:backup", "a", "z"])
def test_starting_turn_is_kept_beside_the_new_one(world: World, thread: str) -> None:
    world.models.script = lambda prompt: spoken("ok")
    own = CHORE if thread == "chore:backup" else {"thread": "m", "coalesce_key": "k"}
    first = world.submit("first", **own)
    held = HeldCommit(world)

    def start() -> None:
        held.of_this_thread()
        world.deliver(world.pending.pop(0))

    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start)
        assert held.reached.wait(120)
        second = world.submit("second", **{**own, "thread": thread})
        starting.result()
    world.run_dry()

    assert [world.row("turns", id=one)["disposition"] for one in (first, second)] == ["answered", "answered"]
    check_all(world.store)


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_repeated_loser_gets_a_retryable_error_and_leaves_nothing(crowd: World, monkeypatch) -> None:
    """Others move the work on to a further thread whenever this one has just looked where it lies."""
    crowd.submit(thread="a", coalesce_key="k")
    busy: list[int] = []
    crowding: list[bool] = []
    look = PreparedStatement.rows

    def another_is_faster(statement: PreparedStatement, tx: Tx, binds: Mapping[str, Any]) -> list[Row]:
        found = look(statement, tx, binds)
        words = statement.compiled(tx.dialect).sql
        if words.startswith("SELECT") and "coalesce_key" in words and not crowding:
            crowding.append(True)
            busy.append(len(busy))
            crowd.submit(thread=f"t{len(busy)}", coalesce_key="k")
            crowding.clear()
        return found

    monkeypatch.setattr(PreparedStatement, "rows", another_is_faster)
    with pytest.raises(Unavailable, match="50 others were first, one after the other"):
        crowd.submit("mine", thread="z", coalesce_key="k")

    assert len(busy) == 2 * 50  # at both looks of each try
    assert [turn for turn in crowd.rows("turns") if turn["text"] == "mine"] == []
    assert len(crowd.rows("turns", status="queued")) == 1
