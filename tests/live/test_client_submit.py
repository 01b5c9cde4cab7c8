"""`chordage submit` and `chordage cancel` with a real Redis: what they send, and how they wait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chordage.config.settings import Settings, load
from chordage.orchestrator import views
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.gateways.redis_events import done_channel
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import schema_version
from chordage.workers import local
from chordage.workers.bootstrap import redis_from, runtime_from
from support import client_room, processes
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.redis

COMMAND = [sys.executable, "-m", "chordage.workers.cli"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def settings(tmp_path: Path, redis_url: str) -> Settings:
    return load(room=client_room.write(tmp_path / "room"), redis_url=redis_url)


@pytest.fixture
def rt(settings: Settings) -> Iterator[Runtime]:
    """The fleet, as it were."""
    runtime = runtime_from(settings)
    schema_version.upgrade(runtime.store)
    yield runtime
    runtime.store.close()


@pytest.fixture
def start(settings: Settings, rt: Runtime, redis_url: str) -> Start:
    def call(*arguments: str) -> subprocess.Popen[str]:
        env = {**os.environ, "CHORDAGE_REDIS_URL": redis_url}
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=settings.room,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.guard().watch(process.pid)
        return process

    return call


@pytest.fixture
def chordage(start: Start) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        process = start(*arguments)
        out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return call


def queued(rt: Runtime) -> views.TurnView:
    """The turn that was just handed in."""
    (line,) = until(lambda: views.turns(rt.store, status=TurnStatus.QUEUED), "the turn is there")
    return views.turn(rt.store, line.turn_id)


def test_a_message_is_stored_its_id_printed_and_the_fleet_woken(chordage, settings, rt):
    done = chordage(
        "submit", "hello", "--agent", "bob", "--thread", "t", "--origin", "chat", "--channel", "telegram",
        "--meta", '{"ticket": 7}', "--strategy", "direct", "--group", "chore",
    )  # fmt: skip

    turn = queued(rt)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{turn.turn_id}\n", "")
    assert (turn.agent, turn.thread_id, turn.origin, turn.channel) == ("bob", "t", "chat", "telegram")
    assert (turn.sender, turn.meta, turn.strategy, turn.group) == ("owner", {"ticket": 7}, "direct", "chore")
    with redis_from(settings) as redis:
        (message,) = redis.lrange(settings.broker_prefix + "chore", 0, -1)
    assert json.loads(message)["headers"]["task"] == "turns.dispatch"


@pytest.mark.parametrize("origin", ["task", "chore", "will"])
def test_what_is_the_agents_own_is_sent_by_itself(chordage, rt, origin):
    chordage("submit", "do it", "--origin", origin, *(() if origin == "will" else ("--thread", f"{origin}:7")))

    turn = queued(rt)
    assert (turn.origin, turn.sender, turn.group) == (origin, "self", origin)


def test_a_known_dedupe_key_shows_the_first_turn(chordage):
    first = chordage("submit", "hello", "--dedupe-key", "k", "--json")
    again = chordage("submit", "hello", "--dedupe-key", "k", "--json")

    assert json.loads(again.stdout) == {**json.loads(first.stdout), "duplicate": True}
    assert "a turn with this dedupe key exists" in again.stderr


def test_waiting_client_gets_the_answer(start, rt):
    process = start("submit", "please add", "--wait")
    local.complete(rt, queued(rt).turn_id, on_wait=lambda turn: None)

    out, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out, err) == (0, "Sums: 3\n34\n", "")


def test_client_that_waits_for_a_failed_turn_gets_the_reason(start, rt):
    process = start("submit", "fail", "--wait", "--json")
    turn = local.complete(rt, queued(rt).turn_id, on_wait=lambda turn: None)

    out, err = process.communicate(timeout=PATIENCE)

    assert process.returncode == 3
    assert json.loads(out)["code"] == "model_auth"
    assert f"turn {turn.turn_id} failed (model_auth: " in err


def test_client_that_waits_too_short_a_time_gets_a_timeout(chordage, rt):
    done = chordage("submit", "hello", "--wait", "--timeout", "0.2")

    turn = queued(rt)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"turn {turn.turn_id} is not done after 0.2 s (queued, number 1" in done.stderr


def test_client_that_stops_waiting_leaves_the_turn_alone(start, settings, rt):
    process = start("submit", "hello", "--wait")
    turn = queued(rt)
    channel = done_channel(settings.prefix, turn.turn_id)
    with redis_from(settings) as redis:
        until(lambda: redis.pubsub_numsub(channel)[0][1], "it waits")

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out) == (130, "")
    assert f"turn {turn.turn_id} continues; `chordage show {turn.turn_id}`" in err
    assert views.turn(rt.store, turn.turn_id).status is TurnStatus.QUEUED


def test_a_busy_thread_can_be_a_conflict(chordage, start, rt):
    chordage("submit", "one", "--thread", "t")
    local.begin(rt, queued(rt))

    done = chordage("submit", "two", "--thread", "t", "--when-busy", "reject")

    assert done.returncode == 1
    assert "thread 't' is busy with run" in done.stderr


def test_the_end_of_a_cancelled_turn_wakes_the_fleet_for_the_next(chordage, settings, rt):
    chordage("submit", "one", "--thread", "t")
    first = queued(rt)
    local.begin(rt, first)
    chordage("submit", "two", "--thread", "t")
    with redis_from(settings) as redis:
        redis.delete(settings.broker_prefix + "chat")

        done = chordage("cancel", first.turn_id)

        assert (done.returncode, done.stdout) == (0, f"turn {first.turn_id} is cancelled\n")
        assert redis.llen(settings.broker_prefix + "chat") == 1
