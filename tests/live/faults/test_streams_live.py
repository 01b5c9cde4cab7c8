"""Followers of real workers: while a text is made, when its worker is killed, while Redis is away.

`RESUMES=200 pytest -s tests/live/faults/test_streams_live.py -k at_random` is the trial at length.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time

import httpx
import pytest

from chordage.orchestrator import views
from chordage.orchestrator.views.run_events import run_events
from chordage.workers import web
from support import processes
from support.following import Reader, Sent, following, read_on, reading
from support.rig import Rig
from support.waiting import until
from support.web_server import served

pytestmark = [pytest.mark.redis, pytest.mark.slow]

RESUMES = int(os.environ.get("RESUMES", "15"))
WORDS = " ".join(f"word{number}" for number in range(60))
REASONING = WORDS[:70]
# Where the test says so by a file, the model waits for it, or takes seconds for its first text.
SCRIPT = f"""
import time
from pathlib import Path

from chordage.orchestrator.gateways.models.script import PromptPosition

ROOM = Path(__file__).parent

def reply(prompt, attempt):
    while (ROOM / "wait").exists():
        time.sleep(0.02)
    if PromptPosition.of(prompt).index:
        return {{"text": "Then {WORDS}", "pace": 0.02, "chunk": 7}}
    return {{
        "reasoning": "{REASONING}", "text": "First {WORDS}", "pace": 0.1 if (ROOM / "slow").exists() else 0.02,
        "chunk": 7, "tool_calls": [{{"name": "pure", "arguments": {{"who": "a"}}}}],
    }}
"""


@pytest.fixture
def rig(make_rig, database_url):
    rig = make_rig(database_url, poison_after=100)  # no poison is what loses three workers by chance
    rig.agent("teller", "scripted:teller.py", SCRIPT)
    return rig


@pytest.fixture
def client(rig: Rig):
    with served(web.wired(rig.settings)) as one:
        yield one


def submitted(client: httpx.Client, thread: str = "t") -> str:
    turn_id: str = client.post("/turns", json={"text": "tell", "agent": "teller", "thread_id": thread}).json()[
        "turn_id"
    ]
    return turn_id


def check(rig: Rig, turn_id: str, reader: Reader) -> None:
    """The facts that came are those on record, all of them, and the text is the history's."""
    turn = views.turn(rig.runtime.store, turn_id)
    until(lambda: not pending(rig, turn.run_id), "all of it is on the bus")
    on_record = [event.id for event in run_events(rig.runtime.store, turn.run_id).events]
    came = [sent.id for sent in reader.facts if sent.event != "turn.queued"]
    assert came == on_record
    replies = {
        row["step"]: row["body"]["text"] for row in rig.rows("journal", run_id=turn.run_id)
        if row["kind"] == "AssistantTurnCommitted"
    }  # fmt: skip
    assert reader.texts == replies or {**replies, **reader.texts} == replies
    assert turn.answer == f"Then {WORDS}"
    assert {step: text for step, text in reader.reasonings.items() if text} == {1: REASONING}
    assert reader.gaps == 0


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def pending(rig: Rig, run_id: str) -> bool:
    return views.standing(rig.runtime.store, run_id).top > views.settled_position(rig.runtime.store)


def test_text_comes_while_it_is_made(rig, client):
    rig.worker("a", "--role", "all", "--concurrency", "4")
    rig.ready()
    (rig.room / "slow").touch()
    (rig.room / "wait").touch()
    turn_id = submitted(client)
    with reading(client, f"/turns/{turn_id}/events") as reader:
        until(lambda: reader.facts, "it follows before the text begins")
        (rig.room / "wait").unlink()
        until(lambda: sum(map(len, reader.texts.values())) > 100, "text comes before the reply")
        assert "model.replied" not in [sent.event for sent in reader.facts]
    check(rig, turn_id, reader)
    kinds = [sent.event for sent in reader.notes]
    assert kinds.count("live.delta") > 10, "in many of its 130 pieces, also where a busy machine sends several at once"
    assert kinds.index("live.reasoning") < kinds.index("live.delta")
    assert reader.resets == 0


def test_result_of_a_call_comes_before_the_text_behind_it(rig, client):
    rig.worker("a", "--role", "all", "--concurrency", "4")
    rig.ready()
    (rig.room / "wait").touch()
    turn_id, sent = submitted(client), []
    with following(client, f"/turns/{turn_id}/events") as events:
        for event in events:
            if isinstance(event, Sent):
                sent.append(event)
                (rig.room / "wait").unlink(missing_ok=True)  # it follows now
    order = [f"{event.event} {event.data.get('step')}" for event in sent]
    settled = next(place for place, what in enumerate(order) if what.startswith(("tool.settled", "tools.settled")))
    reply, text = order.index("model.replied 1"), order.index("live.delta 3")
    assert reply < settled < text


def test_late_follower_gets_the_text_so_far_at_once(rig, client):
    rig.worker("a", "--role", "all", "--concurrency", "4")
    rig.ready()
    (rig.room / "slow").touch()
    turn_id = submitted(client)
    with reading(client, f"/turns/{turn_id}/events") as first:
        until(lambda: len(first.texts.get(1, "")) > 100, "text comes")
        with following(client, f"/turns/{turn_id}/events") as events:
            snapshot = next(sent for sent in events if isinstance(sent, Sent) and sent.event.startswith("live."))
    assert snapshot.event == "live.snapshot"
    assert len(snapshot.data["text"]) > 100
    assert f"First {WORDS}".startswith(snapshot.data["text"])


def test_worker_killed_in_the_middle_of_a_text(rig, client):
    rig.worker("a", "--role", "all", "--concurrency", "4")
    rig.ready()
    (rig.room / "slow").touch()
    turn_id = submitted(client)
    with reading(client, f"/turns/{turn_id}/events") as reader:
        until(lambda: len(reader.texts.get(1, "")) > 60, "text comes")
        rig.workers["a"].kill()
        (rig.room / "slow").unlink()
        rig.worker("b", "--role", "all", "--concurrency", "4")
    assert reader.resets >= 1
    check(rig, turn_id, reader)


def test_follower_that_comes_and_goes_at_random(rig, client):
    """Under kills, as often as it was asked for: no fact is missing or comes twice, and the text is the history's."""
    chance = random.Random(7)
    names = ("a", "b")
    for name in names:
        rig.worker(name, "--role", "all", "--concurrency", "4")
    rig.ready()
    resumes = kills = turns = 0
    next_kill = time.monotonic() + 2
    while resumes < RESUMES:
        turn_id, reader = submitted(client, f"t{turns}"), Reader()
        turns += 1
        while not reader.is_over:
            read_on(reader, client, f"/turns/{turn_id}/events", chance.randrange(1, 30))
            resumes += 1
            rig.restart_the_dead()
            if time.monotonic() > next_kill and all(worker.is_ready for worker in rig.workers.values()):
                rig.workers[chance.choice(names)].kill()
                kills += 1
                next_kill = time.monotonic() + chance.uniform(2, 5)
        check(rig, turn_id, reader)
    print(f"\n{turns} turns, {resumes} connections, {kills} kills")  # noqa: T201 - the trial reports


def test_follower_stays_while_redis_is_away(rig, client):
    rig.worker("a", "--role", "all", "--concurrency", "4")
    rig.ready()
    (rig.room / "slow").touch()
    turn_id = submitted(client)
    with reading(client, f"/turns/{turn_id}/events") as reader:
        until(lambda: len(reader.texts.get(1, "")) > 60, "text comes")
        rig.broker.kill()
        time.sleep(2)  # long enough for each part to notice
        rig.broker.start()
        rig.wait_until_done(meanwhile=rig.restart_the_dead)
    check(rig, turn_id, reader)


def test_server_that_stops_says_so(rig, tmp_path):

    said = tmp_path / "said"
    process = processes.spawn(
        [sys.executable, "-m", "chordage.workers.cli", "web", "--port", "0"], said, env=rig.env, cwd=tmp_path
    )
    try:
        until(lambda: "HTTP on" in said.read_text(), "it has a port")
        url = re.search(r"HTTP on (http://127\.0\.0\.1:\d+)", said.read_text())[1]
        with httpx.Client(base_url=url, timeout=30) as client:
            until(lambda: answers(client), "it answers")
            turn_id = submitted(client)
            with following(client, f"/turns/{turn_id}/events") as events:
                assert next(events) == "retry 1000"
                next(events)
                process.send_signal(signal.SIGTERM)
                rest = list(events)
        assert "the server is stopping" in rest[-1]
        process.wait(timeout=60)
        assert "Traceback" not in said.read_text()
    finally:
        processes.stop(process)
