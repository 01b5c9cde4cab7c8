"""What a look at a channel brings becomes turns, each message one, in the transaction that moves the cursor."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core import channels as core
from chordage.orchestrator.core.agent import AgentSpec, WhenBusy
from chordage.orchestrator.core.channels import WIDEST, Unreadable
from chordage.orchestrator.core.errors import QueueFull, Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.loops import poll as loop
from chordage.orchestrator.loops.poll import PollOutcome, PollResult
from chordage.orchestrator.run import arrivals
from chordage.orchestrator.store import polls, runs
from support.channels import ListChannel, bind, incoming, keys, look, poll_row
from support.invariants import check_all
from support.lock_waits import has_lock_waits
from support.waiting import until
from support.world import Died, World


def numbered(count: int) -> ListChannel:
    return ListChannel(messages=[incoming(number) for number in range(1, count + 1)])


def other_process(world: World) -> PollResult:
    """The same look by another process of the fleet."""
    rt = replace(world.runtime, worker="another")
    return loop.poll_once(rt, "list", world.pending.extend)


def test_each_message_is_a_turn_of_the_channel_with_its_sender_and_where_to_reply(world: World) -> None:
    bind(world, ListChannel(messages=[incoming(1, "hello", meta={"subject": "greetings"})]))

    looked = look(world)

    turn = world.row("turns")
    assert (turn["origin"], turn["channel"], turn["sender"], turn["text"]) == ("chat", "list", "guest", "hello")
    assert (turn["thread_id"], turn["source"], turn["dedupe_key"]) == ("list:1", "poll:list", "1")
    assert turn["reply_target"] == {"channel": "list", "chat": 1}
    assert turn["meta"] == {"subject": "greetings"}
    assert poll_row(world)["cursor"] == "2"
    assert (looked.outcome, looked.wait) == (PollOutcome.CAME, 0.0)


def test_the_next_look_begins_where_the_last_has_stored_and_waits_when_nothing_comes(world: World) -> None:
    channel = bind(world, numbered(2))

    look(world)
    again = look(world)

    assert channel.asked == [None, "3"]
    assert (again.outcome, again.wait) == (PollOutcome.NOTHING, 7.0)


def test_messages_of_one_thread_run_in_the_order_in_which_they_came(world: World) -> None:
    bind(world, numbered(9))

    look(world)
    world.run_dry()

    said = [(row["thread_id"], row["body"]["text"]) for row in world.rows("journal", kind="UserMessage")]
    for person in range(3):
        texts = [text for thread, text in said if thread == f"list:{person}"]
        assert texts == [f"message {number}" for number in range(1, 10) if number % 3 == person]
    check_all(world.store)


def test_what_is_handed_out_twice_and_in_any_order_is_one_turn(world: World, monkeypatch) -> None:
    admit, admitted = arrivals.admit, []
    monkeypatch.setattr(arrivals, "admit", lambda *given: (admitted.append(given), admit(*given))[1])
    channel = bind(world, numbered(20))
    channel.shuffle = lambda found: [*found[::-1], *found]

    look(world)
    with world.store.write() as tx:
        tx.exec_driver_sql("UPDATE polls SET cursor = '1'")  # as if the channel had forgotten
    look(world)

    assert keys(world) == [str(number) for number in range(1, 21)]
    row = poll_row(world)
    assert (row["taken"], row["doubled"]) == (20, 60)
    assert len(admitted) == 20, "what is known is found before a constraint has to refuse it"


def test_a_message_that_breaks_a_rule_drops_nothing_else_and_is_put_on_record(world: World) -> None:
    too_large = incoming(2, "x" * 300_000)
    bind(world, ListChannel(messages=[incoming(1), too_large, incoming(3, " "), incoming(4)]))

    look(world)

    assert keys(world) == ["1", "4"]
    first, second = world.rows("refusals")
    assert (first["source"], first["key"]) == ("poll:list", "2")
    assert "the limit is 262144" in str(first["why"])
    assert first["excerpt"] == "x" * 200
    assert "blank" in str(second["why"])
    assert poll_row(world)["refused"] == 2


def test_a_refused_message_that_comes_again_stays_refused_once(world: World) -> None:
    channel = bind(world, ListChannel(messages=[incoming(1, "")]))

    look(world)
    channel.messages.append(incoming(1, "now it says something", cursor="3"))
    look(world)

    assert len(world.rows("refusals")) == 1
    assert world.rows("turns") == []


def test_what_a_plugin_cannot_read_is_put_on_record_with_what_is_known(world: World) -> None:
    unreadable = Unreadable(key="mail7", why="the mail has 99 bytes, the limit is 9", excerpt="Re: \x00all", cursor="2")
    bind(world, ListChannel(messages=[unreadable, incoming(2)]))

    look(world)

    assert keys(world) == ["2"]
    refused = world.row("refusals")
    assert (refused["key"], refused["why"], refused["excerpt"]) == ("mail7", unreadable.why, "Re: \ufffdall")


@pytest.mark.parametrize("key", ["", "k" * 300, "nul\x00"])
def test_a_message_with_a_key_that_cannot_be_stored_is_accounted_for_all_the_same(world: World, key: str) -> None:
    bind(world, ListChannel(messages=[incoming(1, "one", key=key), incoming(2, "two", key=key), incoming(3)]))

    look(world)

    assert keys(world) == ["3"]
    refused = [str(row["key"]) for row in world.rows("refusals")]
    assert len(set(refused)) == 2
    assert all(each.startswith("sha256:") for each in refused)


@pytest.mark.parametrize("field", ["key", "text", "thread", "address", "meta"])
def test_nul_anywhere_in_a_message_delays_no_other(world: World, field: str) -> None:
    told = {"a": "nul\x00"} if field in {"address", "meta"} else "nul\x00"
    bind(world, ListChannel(messages=[incoming(1, **{field: told}), incoming(2)]))

    looked = look(world)

    assert looked.outcome is PollOutcome.CAME
    assert keys(world)[-1:] == ["2"]
    assert poll_row(world)["cursor"] == "3"


@pytest.mark.parametrize("cursor", ["nul\x00", "half \ud800", "x" * 10_001])
def test_a_cursor_that_cannot_be_stored_is_a_fault_of_its_channel(world: World, cursor: str) -> None:
    channel = bind(world, ListChannel(messages=[incoming(1, cursor=cursor)]))

    failed = look(world)
    told = str(poll_row(world)["error"])
    channel.messages = [incoming(1)]
    world.clock.pass_by(60)
    look(world)

    assert failed.outcome is PollOutcome.FAILED
    assert "names a cursor that cannot be stored" in told
    assert (keys(world), poll_row(world)["cursor"]) == (["1"], "2")


def test_a_sender_that_a_plugin_has_made_up_refuses_that_message_alone(world: World) -> None:
    bind(world, ListChannel(messages=[incoming(1, sender="king"), incoming(2)]))

    look(world)

    assert keys(world) == ["2"]
    assert "king" in str(world.row("refusals")["why"])


def test_a_message_that_finds_its_thread_busy_where_the_agent_rejects_is_refused_alone(world: World) -> None:
    world.agents.agents["ada"] = AgentSpec(name="ada", model="fake", when_busy=WhenBusy.REJECT)
    channel = bind(world, ListChannel(messages=[incoming(3)]))
    look(world)
    world.deliver(world.pending.pop(0))

    channel.messages += [incoming(2), incoming(6), incoming(4)]
    look(world)

    assert keys(world) == ["2", "3", "4"]
    assert "busy" in str(world.row("refusals", key="6")["why"])
    assert world.row("threads", id="list:0")["arrivals"] == 1


def test_many_messages_are_stored_in_bounded_transactions_each_with_the_cursor_up_to_there(world: World) -> None:
    bind(world, numbered(2 * WIDEST + 5))
    look(world)  # the row is made; everything is stored
    revisions = poll_row(world)["revision"]

    assert revisions == 3
    assert len(keys(world)) == 2 * WIDEST + 5


def test_without_cursors_of_their_own_all_messages_are_one_transaction(world: World) -> None:
    messages = [replace(incoming(number), cursor=None) for number in range(1, WIDEST + 11)]
    bind(world, ListChannel(messages=list(messages)))

    look(world)

    assert poll_row(world)["revision"] == 1
    assert len(keys(world)) == WIDEST + 10


def test_two_that_read_the_same_cursor_store_it_once(world: World) -> None:
    channel = bind(world, numbered(5))

    def overtake() -> None:
        channel.before = lambda: None
        world.clock.pass_by(100)  # the lease of the first is over
        other_process(world)

    channel.before = overtake
    looked = look(world)

    assert looked.outcome is PollOutcome.OVERTAKEN
    assert keys(world) == ["1", "2", "3", "4", "5"]
    assert poll_row(world)["taken"] == 5


def test_one_process_looks_at_a_time_and_another_takes_over_when_it_is_gone(world: World) -> None:
    channel = bind(world, numbered(1))
    look(world)

    assert other_process(world).outcome is PollOutcome.ELSEWHERE
    world.clock.pass_by(31)
    assert other_process(world).outcome is PollOutcome.NOTHING
    assert look(world).outcome is PollOutcome.ELSEWHERE
    assert channel.asked == [None, "2"]


def test_renewed_lease_is_kept_and_a_released_one_is_free_at_once(world: World) -> None:
    bind(world, numbered(1))
    look(world)
    world.clock.pass_by(25)
    loop.renew_leases(world.runtime, ["list"])
    world.clock.pass_by(25)

    assert other_process(world).outcome is PollOutcome.ELSEWHERE
    loop.release_leases(world.runtime, ["list"])
    assert other_process(world).outcome is PollOutcome.NOTHING


def test_failing_channel_pauses_longer_each_time_up_to_a_bound_and_recovers(world: World) -> None:
    channel = bind(world, numbered(1))
    channel.fails = [Unavailable("no route")] * 9

    waits = []
    for _ in range(9):
        waits.append(look(world).wait)
        assert look(world).outcome is PollOutcome.RESTING
        world.clock.pass_by(waits[-1] + 0.001)

    assert all(0.5 * 2**n <= wait <= 2**n for n, wait in enumerate(waits[:6]))
    assert max(waits) <= 60
    row = poll_row(world)
    assert (row["failures"], row["error"]) == (9, "no route")
    assert look(world).outcome is PollOutcome.CAME
    assert (poll_row(world)["failures"], poll_row(world)["error"], poll_row(world)["next_look"]) == (0, None, None)


def test_an_agent_that_is_not_there_leaves_the_messages_with_the_channel(world: World) -> None:
    channel = bind(world, numbered(1), agent="nobody")

    assert look(world).outcome is PollOutcome.FAILED
    assert channel.asked == []
    assert "nobody" in str(poll_row(world)["error"])


def full_after(world: World, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A bounded queue with so much room left."""
    admit = arrivals.admit

    def bounded(unit, agent, request, asked):
        admitted = admit(unit, agent, request, asked)
        if len(world.rows("turns")) >= room or int(request.dedupe_key) > room:
            raise QueueFull("group chat takes no more", retry_after=9)
        return admitted

    monkeypatch.setattr(arrivals, "admit", bounded)


def test_the_cursor_does_not_move_past_a_message_for_which_there_is_no_room(world: World, monkeypatch) -> None:
    channel = bind(world, numbered(5))
    with monkeypatch.context() as patch:
        full_after(world, patch, 3)
        looked = look(world)

    assert (looked.outcome, looked.wait) == (PollOutcome.FULL, 9)
    assert keys(world) == ["1", "2", "3"]
    assert poll_row(world)["cursor"] == "4"
    assert "takes no more" in str(poll_row(world)["error"])
    assert world.rows("refusals") == []
    world.clock.pass_by(9.1)
    look(world)
    assert channel.asked == [None, "4"]
    assert keys(world) == ["1", "2", "3", "4", "5"]


def test_without_cursors_of_their_own_what_had_room_comes_again_and_is_no_second_turn(world, monkeypatch) -> None:
    bind(world, ListChannel(messages=[replace(incoming(number), cursor=None) for number in range(1, 6)]))
    with monkeypatch.context() as patch:
        full_after(world, patch, 3)
        look(world)
    assert (keys(world), poll_row(world)["cursor"]) == (["1", "2", "3"], None)

    world.clock.pass_by(9.1)
    look(world)

    assert keys(world) == ["1", "2", "3", "4", "5"]
    assert poll_row(world)["doubled"] == 3


MESSAGES, FEW = 12, 5


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("disorder", ["plain", "doubled"])
def test_death_at_any_commit_neither_loses_nor_doubles_a_message(
    world: World, monkeypatch: pytest.MonkeyPatch, at: int, before: bool, disorder: str
) -> None:
    """Commits: the lease, three batches, and the clearing of an earlier failure."""
    monkeypatch.setattr(core, "WIDEST", FEW)
    channel = bind(world, numbered(MESSAGES))
    channel.messages[4] = incoming(5, "")
    channel.fails = [Unavailable("first it fails")]
    look(world)
    world.clock.pass_by(2)
    if disorder != "plain":
        channel.shuffle = lambda found: [*found[:3], *found]
    world.die_at, world.die_before = world.commits + at, before
    with pytest.raises(Died):
        look(world)
        raise world.kill()  # where single statements have no "before"
    world.die_at = None
    world.pending.clear()

    world.forget_the_dead()
    assert PollOutcome.NOTHING in [look(world).outcome for _ in range(6)]

    assert keys(world) == [str(number) for number in range(1, MESSAGES + 1) if number != 5]
    assert [row["key"] for row in world.rows("refusals")] == ["5"]
    assert poll_row(world)["taken"] == MESSAGES - 1


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_a_batch_locks_the_runs_of_its_threads_in_the_order_in_which_decisions_do(world: World) -> None:
    for thread in ("t1", "t2"):
        world.submit(thread=thread)
        stages.dispatch(world.runtime, Group.CHAT)
    low, high = sorted(row["id"] for row in world.rows("runs"))

    def batch() -> None:
        with world.store.write() as tx:
            polls.lock_threads(tx, {"t1", "t2"})

    with ThreadPoolExecutor(1) as pool:
        with world.store.write() as tx:
            runs.lock(tx, high)
            polled = pool.submit(batch)
            until(lambda: has_lock_waits(world.store), "the batch waits for a lock")
            assert runs.lock(tx, low) is not None
        polled.result(120)
