"""Celery's own command line: `celery -A chordage worker` has the guarantees of `chordage worker`, the rest answers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

from chordage.workers.worker_plan import PROCESSES
from support import processes
from support.rig import UNHURRIED, Plan, Rig
from support.waiting import PATIENCE, until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

CELERY = (sys.executable, "-m", "celery", "-A", "chordage")


@pytest.fixture
def rig(databases, redis_databases, tmp_path):
    redis_url, url = next(redis_databases), databases.migrated("sqlite")
    with Redis.from_url(redis_url) as redis:
        redis.flushdb()
    with closing(Rig(tmp_path, url, redis_url, **UNHURRIED, soft_shutdown=60)) as one:
        yield one
    databases.drop(url)


class Stock:
    """A worker by Celery's own command."""

    def __init__(self, rig: Rig, name: str, *arguments: str) -> None:
        self.log = rig.folder / f"{name}.log"
        self.ready_file = rig.folder / f"{name}.ready"
        command = [*CELERY, "worker", "--ready-file", str(self.ready_file), *arguments]
        self.process = processes.spawn(command, self.log, env=rig.env, cwd=rig.folder)

    def wait_until_ready(self) -> None:
        until(lambda: self.ready_file.exists() or self.process.poll() is not None, "it is ready")
        assert self.process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        processes.kill_tree(self.process)


@pytest.fixture
def stock(rig):
    started: list[Stock] = []

    def start(name: str, *arguments: str) -> Stock:
        started.append(Stock(rig, name, *arguments))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


def celery(rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CELERY, *arguments],
        env=rig.env,
        cwd=rig.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def of_each(workers: list[Stock], ask: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """A worker that has no processor for two seconds is missing among the answers to a broadcast."""
    return until(lambda: len(answers := ask() or {}) == len(workers) and answers, "each worker answers")


def test_stock_workers_have_names_pools_and_queues_by_their_role(rig, stock) -> None:
    workers = [stock(f"{role}{n}", "--role", role) for role in ("turns", "tools") for n in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    stats = of_each(workers, rig.app.control.inspect(timeout=2).stats)
    queues = of_each(workers, rig.app.control.inspect(timeout=2).active_queues)

    assert sorted(name.partition("@")[0] for name in stats) == ["tools-1", "tools-2", "turns-1", "turns-2"]
    for name, told in stats.items():
        assert told["pool"]["max-concurrency"] == (PROCESSES if name.startswith("tools") else 128)
        assert ("prefork" in told["pool"]["implementation"]) == name.startswith("tools")
        assert {queue["name"].endswith(".tools") for queue in queues[name]} == {name.startswith("tools")}
    turn = rig.submit(Plan(id="hello", tools=("pure", "unsafe")))
    rig.wait_until_done()
    assert rig.row("turns", id=turn)["disposition"] == "answered"


def test_stock_worker_asked_to_end_lets_a_tool_finish_even_if_its_children_get_the_signal_too(rig, stock) -> None:
    """As a supervisor does that signals every process of a service."""
    rig.worker("turns", "--role", "turns")
    tools = stock("tools", "--role", "tools", "-c", "2")
    rig.ready()
    tools.wait_until_ready()
    rig.submit(Plan(id="long", tools=("unsafe",), seconds=2.0))
    until(lambda: rig.facts(name="unsafe", phase="begin"), "the call is in hand")
    told = time.monotonic()
    os.killpg(tools.process.pid, signal.SIGTERM)

    assert tools.process.wait(PATIENCE) == 0
    assert time.monotonic() - told < rig.settings.soft_shutdown, "it has waited for the call, and no longer"
    assert len(rig.facts(name="unsafe", phase="end")) == 1
    rig.wait_until_done()
    assert rig.row("calls")["status"] == "succeeded"


REFUSED = {
    ("-P", "solo"): "the pool solo has no time limits, or no clean end",
    ("-Q", "chat,nowhere"): "there is no queue 'nowhere': choose from",
    ("--role", "tools", "--groups", "cat"): "there is no group 'cat': choose from",
    ("--role", "nothing"): "'nothing' is not one of",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_options_a_worker_cannot_use_are_refused_with_a_message(rig, arguments) -> None:
    done = celery(rig, "worker", *arguments)

    assert done.returncode != 0
    assert REFUSED[arguments] in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr


# One who is named is waited for, and no longer than it takes; all others have the second that Celery gives them.
NAMED = ("-d", f"all-1@{socket.gethostname()}", "-t", f"{PATIENCE:g}")
COMMANDS = {
    ("status", *NAMED): "1 node online",
    ("inspect", *NAMED, "ping"): "all-1@",
    ("inspect", *NAMED, "registered"): "tools.call",
    ("control", *NAMED, "rate_limit", "tools.call", "0"): "all-1@",
    ("report",): "chordage.workers.transport:Transport",
}


def test_inspect_control_status_and_report_find_the_fleet(rig, stock) -> None:
    stock("all").wait_until_ready()
    for arguments, expected in COMMANDS.items():
        done = celery(rig, *arguments)
        assert (done.returncode, expected in done.stdout) == (0, True), (arguments, done.stdout, done.stderr)


def test_beat_sends_ticks_and_does_not_log_each(rig, stock) -> None:
    stock("all").wait_until_ready()
    log = rig.folder / "beat.log"
    beat = processes.spawn([*CELERY, "beat", "-l", "INFO"], log, env=rig.env, cwd=rig.folder)

    def carried_out() -> bool:
        stats = rig.app.control.inspect(timeout=1).stats() or {}
        return any(told["total"].get("system.rescue", 0) >= 2 for told in stats.values() if "total" in told)

    until(carried_out, "ticks arrive")
    processes.stop(beat)
    assert "due task" not in log.read_text()


@pytest.mark.parametrize("command", [("inspect", "ping"), ("status",), ("beat",), ("worker",)])
def test_without_a_redis_it_is_one_line(rig, command) -> None:
    del rig.env["CHORDAGE_REDIS_URL"]
    done = celery(rig, *command)

    assert done.returncode == 1
    assert done.stderr.startswith("chordage: no Redis is set: give CHORDAGE_REDIS_URL")
    assert len(done.stderr.splitlines()) == 1
