"""Fleets in the background, and loops of one's choice: as started, killed, looked at and stopped from a terminal."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil
import pytest

from chordage.orchestrator import views
from chordage.orchestrator.store.database import Store
from chordage.workers.fleet.member import free_port
from support import gated_tool, processes
from support.fleet_folder import CHORDAGE, agent_run, alive_in, call, kill, started_as, status
from support.plain_room import forget_settings
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

SCRIPT = """
- when: gate
  tool_calls: [{name: wait_for_gate}]
- when: gate
  text: "The gate is {results}."
- text: "You said: {user}"
"""


@pytest.fixture(autouse=True)
def _only_these_settings(monkeypatch):
    forget_settings(monkeypatch)
    for name, seconds in {"LEASE": "4", "BEAT": "1", "SWEEP": "1"}.items():
        monkeypatch.setenv(f"CHORDAGE_{name}", seconds)


@pytest.fixture
def room(tmp_path, valkey_program):
    folder = tmp_path / "room"
    folder.mkdir()
    (folder / "agent.toml").write_text('model = "scripted:script.yaml"\ntools = ["gates"]\n')
    (folder / "script.yaml").write_text(SCRIPT)
    (folder / "gates.py").write_text(gated_tool.TOOL)
    yield folder
    kill(alive_in(folder))


def test_66_67_fleet_in_the_background_is_one_summary_from_its_start_over_a_kill_to_its_stop(room):
    port = str(free_port())
    started = call(room, "start", "--tools", "1", "--port", port)
    assert started.code == 0, started.err
    first = agent_run(room)
    assert f"process {first['pid']}" in started.out
    assert f"http://127.0.0.1:{port}" in started.out
    assert str(room / ".chordage" / "logs" / "fleet.log") in started.out
    assert os.getsid(first["pid"]) == first["pid"], "it has no part in the session of the terminal"

    told = status(room)
    assert (told["status"], told["pid"], told["loops"]) == ("running", first["pid"], ["server", "hook", "pulse"])
    assert {one["name"]: one["state"] for one in told["members"]} == dict.fromkeys(
        ("valkey", "turns", "tools-1", "web", "beat"), "running"
    )
    assert not any(told["health"].values())
    turn = call(room, "submit", "gate").out.strip()
    until((room / "begun").exists, "the tool runs")

    psutil.Process(first["pid"]).kill()
    gone = call(room, "status")
    assert gone.code == 3
    assert f"nothing runs on {room / '.chordage'}" in gone.out
    assert (agent_run(room)["status"], agent_run(room)["pid"]) == ("stopped", None)
    (room / "gate").touch()
    assert call(room, "start", "--tools", "1", "--port", port).code == 0
    second = agent_run(room)
    assert second["pid"] != first["pid"]
    with contextlib.closing(Store(f"sqlite:///{room / 'execution.db'}")) as store:
        until(lambda: views.is_done(store, turn), "the turn continues")
        trace = views.trace(store, turn)
    assert trace.turn.answer == "The gate is open."

    stopped = call(room, "stop", "--grace", "100")
    assert (stopped.code, stopped.err) == (0, "")
    assert stopped.out.startswith(f"stopped process {second['pid']} (")
    assert alive_in(room) == []
    summary = agent_run(room)
    assert (summary["status"], summary["pid"], summary["loops"], summary["members"]) == ("stopped", None, [], [])
    assert list((room / ".chordage" / "ready").iterdir()) == []


def test_69_stop_kills_what_has_not_ended_within_the_grace(room):
    assert call(room, "start", "--loop", "pulse", "--no-workers", "--port", "0").code == 0
    pid = agent_run(room)["pid"]
    psutil.Process(pid).suspend()

    stopped = call(room, "stop", "--grace", "0.5")

    assert stopped.code == 0, stopped.err
    assert stopped.out.startswith(f"killed process {pid}, which had not ended within 0.5 s")
    assert alive_in(room) == []
    assert agent_run(room)["status"] == "stopped"


def test_leftovers_of_a_fleet_and_its_reaper_are_reported_and_stopped(room):
    assert call(room, "start", "--loop", "pulse", "--no-workers", "--port", "0").code == 0
    summary = agent_run(room)
    reaper = started_as("reaper_program.py", room)
    fleet = psutil.Process(summary["pid"])
    fleet.suspend()  # or it would start another reaper
    reaper.kill()
    fleet.kill()
    until(lambda: not fleet.is_running() or fleet.status() == psutil.STATUS_ZOMBIE, "the fleet is gone")

    told = call(room, "status")
    stopped = call(room, "stop")

    assert told.code == 3
    assert "was left behind by an earlier fleet; `chordage stop` ends it" in told.err
    assert {line.split()[1] for line in stopped.out.splitlines()} == {"valkey,", "beat,"}
    assert alive_in(room) == []


def test_failed_start_gives_the_reason_and_leaves_nothing_behind(room):
    (room / "execution.db").write_text("no database" * 100)

    done = call(room, "start", "--port", "0")

    assert done.code == 1
    assert done.err.startswith("chordage: fleet ended with code 1; the end of ")
    assert "execution.db cannot be used" in done.err
    assert alive_in(room) == []


def test_broken_agent_is_reported_and_stops_no_start(room):
    (room / "agent.toml").write_text("model = 3\n")

    done = call(room, "start", "--no-workers", "--port", "0")
    stopped = call(room, "stop")

    assert (done.code, stopped.code) == (0, 0)
    assert "agent.toml:1: model: must be a text" in done.out


def test_term_ends_a_foreground_run_in_order_and_leaves_no_process(room):
    log = room.parent / "run.log"
    ready = room.parent / "ready"
    words = ["run", "--loop", "server", "--no-workers", "--port", "0", "--ready-file", str(ready)]
    process = processes.spawn([*CHORDAGE, *words], log, cwd=room)
    until(lambda: ready.exists() or process.poll() is not None, "it is ready")
    assert process.poll() is None, log.read_text()
    told = status(room)
    assert (told["loops"], sorted(one["name"] for one in told["members"])) == (["server"], ["valkey", "web"])

    code = processes.stop(process, signal.SIGTERM)

    assert code == 0
    assert alive_in(room) == []
    assert agent_run(room)["status"] == "stopped"
    assert not ready.exists()


def test_run_interrupted_before_it_is_up_lists_what_it_stopped_and_leaves_no_process(room):
    log = room.parent / "run.log"
    words = ["run", "--loop", "server", "--no-workers", "--port", "0"]
    process = processes.spawn([*CHORDAGE, *words], log, cwd=room)
    until((room / ".chordage" / "fleet.json").exists, "the broker is started")

    code = processes.stop(process, signal.SIGINT)

    said = log.read_text()
    assert code == 130, said
    assert said.startswith("chordage: interrupted; stopped: ")
    assert said.endswith("valkey; nothing is left running\n")
    assert alive_in(room) == []


def test_file_of_channels_that_binds_none_so_far_is_waited_for(room):
    (room / "channels.toml").write_text("# none yet\n")
    assert call(room, "start", "--loop", "poll", "--no-workers", "--port", "0").code == 0

    log = room / ".chordage" / "logs" / "poll.log"
    until(lambda: "no channel is bound yet" in log.read_text(), "it waits")
    (room / "channels.toml").write_text('[channels.x]\nplugin = "http_jsn"\n')
    until(lambda: "did you mean http_json" in log.read_text(), "it reads the file again")

    told = status(room)
    assert (told["restarts"], call(room, "stop").code) == (0, 0)
