"""Calls that wait for a person, in real processes: what a waiting run holds, what it survives, what the model reads."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import update

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.transcript import AWAITING
from chordage.orchestrator.store import groups, schema
from support.rig import Plan, Rig
from support.rig_checks import check_rig
from support.rig_inbox import answer, inbox, question_of
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

DAY = timedelta(days=1)
MOVED = {"suspensions": ("created_at", "expires_at"), "runs": ("started_at",), "turns": ("queued_at", "started_at")}


def rests(rig: Rig, run_id: str) -> bool:
    return rig.row("runs", id=run_id)["status"] == "waiting" and not rig.redis.keys("chordage:thread:*")


def lose_all_processes(rig: Rig) -> None:
    for worker in rig.workers.values():
        worker.kill()
    rig.broker.kill()


def start_all_again(rig: Rig) -> None:
    rig.broker.start()
    assert rig.restart_the_dead() == list(rig.workers)
    rig.ready()


def a_day_passes(rig: Rig) -> None:
    """The rows grow older by a day."""
    for name, columns in MOVED.items():
        table = schema.metadata.tables[name]
        for row in rig.rows(name):
            older = {column: row[column] - DAY for column in columns if row[column] is not None}
            with rig.runtime.store.write() as tx:
                tx.execute(update(table).where(table.c.id == row["id"]).values(**older))


def what_is_held(rig: Rig, run_id: str) -> dict[str, object]:
    """All that a run could hold while it waits, in figures."""
    run, asked = rig.row("runs", id=run_id), rig.rows("calls", run_id=run_id, status="suspended")
    with rig.runtime.store.read() as tx:
        free = groups.places(tx, Group.CHAT, default=rig.settings.budgets.chat).free
    return {
        "thread locks": rig.redis.keys("chordage:thread:*"),
        "work in hand": rig.redis.keys("chordage:work:*"),
        "queued messages": rig.queue_lengths(),
        "messages not acknowledged": rig.redis.hlen("unacked"),
        "claims": [row[name] for row in (run, *asked) for name in ("claim_token", "lease_until") if row[name]],
        "free slots": free,
    }


NOTHING = {
    "thread locks": [], "work in hand": [], "queued messages": {}, "messages not acknowledged": 0, "claims": [],
    "free slots": 1,
}  # fmt: skip


def test_a_run_waits_for_nothing_but_its_answers_whatever_is_killed(make_rig, database_url):
    rig = make_rig(database_url, budgets={"chat": 1}, lease=3, beat=1, sweep=1)
    rig.worker("turns", "--role", "turns", "--concurrency", "4")
    rig.worker("tools", "--role", "tools", "--concurrency", "2")
    rig.ready()
    turn = rig.submit(Plan(id="two", tools=("asks_and_lingers", "asks_by_raising")), "slow", agent="asker")
    run = until(lambda: rig.row("turns", id=turn)["run_id"], "the run starts")
    until(lambda: rests(rig, run), "the run rests")
    until(lambda: what_is_held(rig, run) == NOTHING, "marks of its work run out, and messages are acknowledged")
    beside = rig.submit(Plan(id="beside", rounds=0), "other")
    until(lambda: rig.row("turns", id=beside)["disposition"], "the one slot is free for others")

    answer(rig, question_of(rig, "asks_and_lingers"), payload=True)
    until(lambda: rig.facts(name="asks_and_lingers", phase="begin"), "the approved call runs")
    lose_all_processes(rig)
    start_all_again(rig)
    until(lambda: rig.rows("calls", run_id=run, status="succeeded") and rests(rig, run), "the first ran")
    assert [row["tool"] for row in inbox(rig)] == ["asks_by_raising"]

    a_day_passes(rig)
    rig.workers["tools"].kill()  # killed in the middle of the call, it would have to be asked what became of that
    answer(rig, question_of(rig, "asks_by_raising"), payload=True)
    lose_all_processes(rig)
    start_all_again(rig)
    rig.wait_until_done()

    ended = Counter(fact["name"] for fact in rig.facts(what="tool", phase="end"))
    assert ended == {"asks_and_lingers": 1, "asks_by_raising": 1}
    assert (rig.row("runs", id=run)["reason"], rig.row("turns", id=turn)["disposition"]) == ("natural_end", "answered")
    assert rig.answer(turn) == "done two: asks_and_lingers two.0.0\nasks_by_raising two.0.1"
    check_rig(rig)


AGENT = """
model = "{wire}-wire:model"
tools = ["rig_questions", "rig_tools:pure"]

[models.{wire}-wire]
wire = "{wire}"
base_url = "{base}"
"""
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


def small_rig(make_rig, url: str, wire: str) -> Rig:
    rig = make_rig(url)
    base = rig.model.url + ("/v1" if wire == "openai" else "")
    (rig.room / "agents" / "speaker.toml").write_text(AGENT.format(wire=wire, base=base))
    rig.worker("all", "--role", "all", "--concurrency", "4")
    rig.ready()
    return rig


def question_of_suspended_run(rig: Rig, plan: Plan) -> dict:
    """The one question of a turn, once its run rests."""
    turn = rig.submit(plan, agent="speaker")
    until(lambda: rig.row("turns", id=turn)["run_id"], "the run starts")
    until(lambda: rests(rig, rig.row("turns", id=turn)["run_id"]), "the run rests")
    (row,) = inbox(rig)
    return row


def read_by_the_model(rig: Rig, wire: str) -> list[list[str]]:
    """What each request gives as results of calls, in their order; each request is well-formed."""
    received = [request.body["messages"] for request in rig.model.requests]
    assert {request.path for request in rig.model.requests} == {PATHS[wire]}
    return [(of_openai if wire == "openai" else of_anthropic)(messages) for messages in received]


def of_openai(messages: list[dict]) -> list[str]:
    results = [message for message in messages if message["role"] == "tool"]
    behind = []
    for place, message in enumerate(messages):
        ids = [call["id"] for call in message.get("tool_calls") or ()]
        answers = messages[place + 1 : place + 1 + len(ids)]
        assert [found.get("tool_call_id") for found in answers] == ids, "every call has its answer right behind it"
        behind += answers
    assert results == behind, "no answer is anywhere else, and none twice"
    return [message["content"] for message in results]


def of_anthropic(messages: list[dict]) -> list[str]:
    assert [message["role"] for message in messages] == ["user", "assistant", *["user", "assistant"] * 9][
        : len(messages)
    ]
    asked = [[block["id"] for block in m["content"] if block["type"] == "tool_use"] for m in messages]
    found = [[block for block in m["content"] if block["type"] == "tool_result"] for m in messages]
    answered = [[block["tool_use_id"] for block in blocks] for blocks in found]
    assert answered == [[], *asked[:-1]], "every call has its answer in the message behind it, and nowhere else"
    assert asked[-1] == [], "the reader of this has no question"
    for message, blocks in zip(messages, found, strict=True):
        assert message["content"][: len(blocks)] == blocks, "results come first"
    return [block["content"] for blocks in found for block in blocks]


@pytest.mark.parametrize("wire", PATHS)
def test_the_model_reads_a_placeholder_and_then_why_it_was_denied(make_rig, migrated_database_url, wire):
    rig = small_rig(make_rig, migrated_database_url("sqlite"), wire)
    row = question_of_suspended_run(rig, Plan(id="no", tools=("asks", "pure")))

    answer(rig, row, action="cancel", reason="far too dear")
    rig.wait_until_done()

    first, with_placeholder, last = read_by_the_model(rig, wire)
    assert (first, with_placeholder) == ([], [AWAITING, "pure no.0.1"])
    assert "denied" in last[0]
    assert "far too dear" in last[0]
    assert last[1:] == ["pure no.0.1"]
    check_that_only_one_ran(rig)


def check_that_only_one_ran(rig: Rig) -> None:
    assert [row["status"] for row in rig.rows("calls")] == ["cancelled", "succeeded"]
    assert rig.facts(name="asks", phase="begin") == []
    assert rig.row("turns")["disposition"] == "answered"


@pytest.mark.parametrize("wire", PATHS)
def test_a_result_that_comes_three_replies_later_takes_the_place_of_its_placeholder(
    make_rig, migrated_database_url, wire
):
    rig = small_rig(make_rig, migrated_database_url("sqlite"), wire)
    row = question_of_suspended_run(rig, Plan(id="late", rounds=3, tools=("asks_at_first", "pure")))

    answer(rig, row, payload=True)
    rig.wait_until_done()

    later = [f"{tool} late.{index}.{n}" for index in (1, 2) for n, tool in enumerate(("asks_at_first", "pure"))]
    read = read_by_the_model(rig, wire)
    assert [len(results) for results in read] == [0, 2, 4, 6, 6]
    assert {results[0] for results in read[1:4]} == {AWAITING}
    assert read[4] == ["asks_at_first late.0.0", "pure late.0.1", *later]
    check_rig(rig)


@pytest.mark.parametrize("wire", PATHS)
def test_second_model_call_reads_something_new_after_its_own_reply(make_rig, migrated_database_url, wire):
    """Anthropic refuses a conversation that ends with the assistant: newer models take no beginnings of replies."""
    rig = small_rig(make_rig, migrated_database_url("sqlite"), wire)
    row = question_of_suspended_run(rig, Plan(id="late", tools=("asks", "pure")))

    answer(rig, row, payload=True)
    rig.wait_until_done()

    assert {request.body["messages"][-1]["role"] for request in rig.model.requests} <= {"user", "tool"}
