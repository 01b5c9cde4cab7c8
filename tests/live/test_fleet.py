"""The embedded fleet as people start it: works at once, ends in order, leaves nobody behind, forgets nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import httpx
import psutil
import pytest

from chordage.orchestrator import views
from chordage.orchestrator.store.tx import Store
from chordage.workers import demo
from chordage.workers.fleet import found
from chordage.workers.fleet.ports import free_port
from support import gate, processes
from support.plain_room import forget_settings
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

CHORDAGE = (sys.executable, "-P", "-m", "chordage.workers.cli")
SLOW_SCRIPT = """
- tool_calls: [{name: wait_for_gate}]
- text: "The gate is {results}."
"""


@pytest.fixture(autouse=True)
def _only_these_settings(monkeypatch):
    forget_settings(monkeypatch)
    for name, seconds in {"LEASE": "4", "BEAT": "1", "SWEEP": "1"}.items():
        monkeypatch.setenv(f"CHORDAGE_{name}", seconds)


@pytest.fixture
def room(tmp_path, valkey_program):
    folder = tmp_path / "room"
    demo.copy_to(folder)
    yield folder
    for process in alive_in(folder):
        process.kill()


@pytest.fixture
def start_dev(room):
    """Starts `chordage dev` in the room and waits until it is up."""

    def start():
        port = free_port()
        log = room.parent / "dev.log"
        log.unlink(missing_ok=True)
        process = processes.spawn([*CHORDAGE, "dev", "--port", str(port)], log, cwd=room)
        until(lambda: "Ctrl-C ends it" in log.read_text() or process.poll() is not None, "dev is up", 60)
        assert process.poll() is None, log.read_text()
        return process, f"http://127.0.0.1:{port}"

    return start


def alive_in(folder):
    """Processes that were started in this folder: all of a fleet's are, its broker and its keeper too."""
    return [process for process in psutil.process_iter() if _is_in(process, folder)]


def _is_in(process, folder):
    try:
        return process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder)
    except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
        return False


def entries(room, member):
    """What a member has logged, as far as it is JSON."""
    lines = (room / ".chordage" / "logs" / f"{member}.log").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_demo_runs_its_tools_at_once_on_two_workers_and_ends_clean(tmp_path, valkey_program):
    done = subprocess.run(
        [*CHORDAGE, "demo", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)

    assert told["turn"]["disposition"] == "answered"
    assert {call["status"] for call in told["calls"]} == {"succeeded"}
    assert {call["member"] for call in told["calls"]} == {"tools-1", "tools-2"}
    assert len({call["worker"] for call in told["calls"]}) == 4
    began, ended = ([datetime.fromisoformat(call[key]) for call in told["calls"]] for key in ("started", "ended"))
    assert max(began) < min(ended), "all four ran at the same time"
    assert alive_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_demo_for_people_ends_with_what_to_do_next(tmp_path, valkey_program):
    done = subprocess.run([*CHORDAGE, "demo"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0
    assert "Plan a Saturday in Lisbon" in done.stdout
    assert "4 tool calls" in done.stdout
    assert done.stdout.splitlines()[-1].strip().startswith("chordage submit")


def test_ctrl_c_ends_everything_in_order_within_ten_seconds(room, start_dev):
    dev, url = start_dev()
    assert httpx.post(f"{url}/turns?wait=30", json={"text": "Hello"}, timeout=40).json()["disposition"] == "answered"

    code = processes.stop(dev, signal.SIGINT, patience=10)

    assert code == 0
    assert alive_in(room) == []
    assert found.running_in(room / ".chordage") is None
    for member in ("turns", "tools-1", "tools-2"):
        told = entries(room, member)
        assert told[-1]["event"] == "worker is leaving"
        assert not [entry for entry in told if entry["level"] in {"error", "critical"}], (
            "the broker outlived the workers"
        )


def test_fleet_that_is_killed_leaves_no_process_behind(room, start_dev):
    dev, _url = start_dev()
    assert len(alive_in(room)) > 7

    dev.kill()
    dev.wait()

    until(lambda: not alive_in(room), "everybody is gone", 25)


def test_keeper_that_is_killed_is_replaced_and_does_its_work(room, start_dev):
    dev, _url = start_dev()
    keeper = next(process for process in alive_in(room) if "keeping.py" in " ".join(process.cmdline()))
    keeper.kill()
    until(lambda: [p for p in alive_in(room) if "keeping.py" in " ".join(p.cmdline()) and p != keeper], "a new keeper")

    dev.kill()
    dev.wait()

    until(lambda: not alive_in(room), "everybody is gone", 25)


def test_worker_that_dies_is_started_again_and_it_is_said(room, start_dev):
    dev, url = start_dev()
    ready = room / ".chordage" / "ready" / "turns"
    first = int(ready.read_text())

    psutil.Process(first).kill()

    until(lambda: ready.exists() and ready.read_text().strip() not in {"", str(first)}, "another one is ready", 40)
    assert "turns was killed by SIGKILL; it is started again in 0.5 s" in (room.parent / "dev.log").read_text()
    assert httpx.post(f"{url}/turns?wait=30", json={"text": "Hello"}, timeout=40).json()["disposition"] == "answered"
    assert processes.stop(dev, signal.SIGTERM) == 0


def test_turn_goes_on_after_everything_was_killed_in_the_middle_of_it(room, start_dev):
    (room / "day_out.py").write_text(gate.TOOL)
    (room / "script.yaml").write_text(SLOW_SCRIPT)
    first, _url = start_dev()
    sent = subprocess.run([*CHORDAGE, "submit", "Hello"], cwd=room, capture_output=True, text=True, check=True)
    turn_id = sent.stdout.strip()
    until((room / "begun").exists, "the tool runs")

    while killed := alive_in(room):
        for process in killed:
            process.kill()
    first.wait()
    (room / "gate").touch()
    dev, url = start_dev()

    told = until(lambda: _answer(url, turn_id), "the turn is answered", 60)
    assert told == "The gate is open."
    assert processes.stop(dev, signal.SIGINT) == 0


def _answer(url, turn_id):
    return httpx.get(f"{url}/turns/{turn_id}").json()["answer"]


def test_message_of_a_plain_celery_app_becomes_a_turn_without_naming_a_queue(room, start_dev):
    dev, _url = start_dev()
    fleet = found.running_in(room / ".chordage")
    script = (
        "import sys; from celery import Celery; app = Celery('visitor', broker=sys.argv[1], backend=sys.argv[1]);"
        "sent = app.send_task('turns.submit', kwargs={'text': 'Hello'}); print(sent.get(timeout=30)); sent.forget()"
    )

    sent = subprocess.run(
        [sys.executable, "-c", script, fleet.redis_url], capture_output=True, text=True, check=True, timeout=60
    )

    store = Store(fleet.database_url)
    until(lambda: views.turn(store, sent.stdout.strip()).disposition, "the turn is done")
    store.close()
    assert processes.stop(dev, signal.SIGINT) == 0
