"""The embedded fleet as people start it: works at once, ends in order, leaves no process behind, loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import datetime
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from chordage.orchestrator import views
from chordage.orchestrator.store.database import Store
from chordage.workers import demo
from chordage.workers.fleet import fleet_file
from chordage.workers.fleet.member import free_port
from support import gated_tool, processes
from support.fleet_folder import alive_in, kill, started_as
from support.plain_room import forget_settings
from support.waiting import PATIENCE, until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

CHORDAGE = (sys.executable, "-P", "-m", "chordage.workers.cli")
SLOW_SCRIPT = """
- tool_calls: [{name: wait_for_gate}]
- text: "The gate is {results}."
"""
DEMO_OF = """
import sys
from pathlib import Path
from chordage.workers import cli, demo

demo.HERE = Path(sys.argv[1])
cli.main(["demo", "--json"])
"""
# In the place of a second, in which a busy machine may not even begin all of them.
UNTIL_ALL_ARE_HERE = """

def _ask_around(ctx: Context) -> None:
    import os
    from pathlib import Path

    here = Path(__file__).parent / "here"
    here.mkdir(exist_ok=True)
    (here / str(os.getpid())).touch()
    while len(list(here.iterdir())) < 4:
        time.sleep(0.02)
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
    kill(alive_in(folder))


@pytest.fixture
def start_dev(room):
    """Starts `chordage dev` in the room and waits until it is up."""

    def start():
        port = free_port()
        log = room.parent / "dev.log"
        log.unlink(missing_ok=True)
        process = processes.spawn([*CHORDAGE, "dev", "--port", str(port)], log, cwd=room)
        until(lambda: "Ctrl-C ends it" in log.read_text() or process.poll() is not None, "dev is up")
        assert process.poll() is None, log.read_text()
        return process, f"http://127.0.0.1:{port}"

    return start


def answer_of(url):
    """To a message that is sent there; it is waited for as often as it takes."""
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        turn = client.post("/turns", json={"text": "Hello"}).json()["turn_id"]
        return until(lambda: client.get(f"/turns/{turn}", params={"wait": 30}).json()["disposition"], "it is answered")


def broker_of(room):
    return started_as("valkey-server", room) or started_as("redis-server", room)


def entries(room, member):
    """What a member has logged, as far as it is JSON."""
    lines = (room / ".chordage" / "logs" / f"{member}.log").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def demonstrated(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=4 * PATIENCE)


def test_demo_runs_its_tools_at_once_on_two_workers_and_ends_clean(tmp_path_factory, valkey_program):
    tmp_path, of_demo = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("demo")
    demo.copy_to(of_demo)
    with (of_demo / "day_out.py").open("a") as tools:
        tools.write(UNTIL_ALL_ARE_HERE)

    done = demonstrated([sys.executable, "-P", "-c", DEMO_OF, of_demo], tmp_path)

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
    done = demonstrated([*CHORDAGE, "demo"], tmp_path)

    assert done.returncode == 0
    assert "Plan a Saturday in Lisbon" in done.stdout
    assert "4 tool calls" in done.stdout
    assert done.stdout.splitlines()[-1].strip().startswith("chordage submit")


def test_ctrl_c_ends_everything_in_order(room, start_dev):
    dev, url = start_dev()
    assert answer_of(url) == "answered"

    code = processes.stop(dev, signal.SIGINT)

    assert code == 0
    assert alive_in(room) == []
    assert fleet_file.running_in(room / ".chordage") is None
    for member in ("turns", "tools-1", "tools-2"):
        told = entries(room, member)
        assert told[-1]["event"] == "worker is shutting down"
        assert not [entry for entry in told if entry["level"] in {"error", "critical"}], (
            "the broker outlived the workers"
        )


def test_fleet_that_is_killed_leaves_no_process_behind(room, start_dev):
    dev, _url = start_dev()
    assert len(alive_in(room)) > 7

    dev.kill()
    dev.wait()

    until(lambda: not alive_in(room), "everybody is gone")


def test_fleet_that_is_killed_after_its_broker_was_replaced_leaves_nothing_behind_and_starts_again(room, start_dev):
    dev, _url = start_dev()
    broker = broker_of(room)
    broker.kill()
    until(lambda: broker_of(room) not in {None, broker}, "another broker runs")
    until(lambda: member_in(room, "valkey")["restarts"] == 1, "the fleet has taken note of it")

    dev.kill()
    dev.wait()

    until(lambda: not alive_in(room), "everybody is gone")
    again, url = start_dev()
    assert answer_of(url) == "answered"
    assert processes.stop(again, signal.SIGINT) == 0


def test_fleet_ends_a_broker_that_a_killed_fleet_and_its_killed_reaper_left_behind(room, start_dev):
    dev, _url = start_dev()
    broker = broker_of(room)
    dev.send_signal(signal.SIGSTOP)  # or it would start another reaper
    reaper_of(room).kill()  # before the fleet, whose end it would see
    while killed := [process for process in alive_in(room) if process != broker]:
        kill(killed)
    dev.wait()
    assert broker.is_running()

    again, url = start_dev()

    assert broker_of(room) != broker
    assert answer_of(url) == "answered"
    assert processes.stop(again, signal.SIGINT) == 0
    assert alive_in(room) == []


def reaper_of(room):
    return started_as("reaper_program.py", room)


def member_in(room, name):
    told = json.loads((room / "agent.run").read_text())
    return next(one for one in told["members"] if one["name"] == name)


def made_in(room, before):
    """What was not there before. Python's caches say no more than the room's own code."""
    return [path for path in room.rglob("*") if path not in before and "__pycache__" not in path.parts]


def open_to_others(paths):
    return {str(path): oct(mode) for path in paths if (mode := mode_of(path)) & 0o077}


def mode_of(path):
    """0 for a file that its process has renamed or deleted meanwhile."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return 0


def test_other_users_cannot_access_a_file_or_folder_that_a_fleet_makes(room, start_dev):
    (room / "chores").mkdir()
    (room / "chores" / "tidy.md").write_text("---\nevery: 1s\n---\nTidy up.\n")
    before = {room, *room.rglob("*")}
    dev, url = start_dev()
    assert answer_of(url) == "answered"
    until((room / "pulse.json").exists, "the mirror of the pulse is there")

    made = made_in(room, before)

    names = {path.name for path in made}
    assert {"execution.db", "execution.db-wal", "execution.db-shm", "fleet.json", "agent.run", "turns.log"} <= names
    assert {".chordage", "logs", "ready", "valkey", "appendonlydir", "auth.conf", "valkey.lock", "fleet.lock"} <= names
    assert open_to_others(made) == {}
    assert processes.stop(dev, signal.SIGINT) == 0
    assert open_to_others(made_in(room, before)) == {}


def test_paths_open_to_others_are_closed_at_start_and_reported(room, start_dev):
    first, _url = start_dev()
    assert processes.stop(first, signal.SIGINT) == 0
    ours = [room / ".chordage", *(room / ".chordage").rglob("*"), *room.glob("execution.db*"), room / "agent.run"]
    for path in ours:
        path.chmod(path.stat().st_mode | 0o055)
    (room / "agent.toml").chmod(0o644)

    dev, _url = start_dev()

    assert open_to_others(path for path in ours if path.exists()) == {}
    assert (room / "agent.toml").stat().st_mode & 0o777 == 0o644, "the room's own files are its owner's affair"
    assert "other users of this machine could use" in (room.parent / "dev.log").read_text()
    assert processes.stop(dev, signal.SIGINT) == 0


def test_password_of_the_broker_is_where_its_owner_alone_can_read_it(room, start_dev):
    dev, url = start_dev()
    assert answer_of(url) == "answered"
    password = urlsplit(fleet_file.running_in(room / ".chordage").redis_url).password
    assert len(password) >= 40

    told = subprocess.run([*CHORDAGE, "status"], cwd=room, capture_output=True, text=True, check=True).stdout
    told += subprocess.run([*CHORDAGE, "status", "--json"], cwd=room, capture_output=True, text=True, check=True).stdout
    told += (room.parent / "dev.log").read_text() + (room / "agent.run").read_text()
    told += "".join(log.read_text(errors="replace") for log in (room / ".chordage" / "logs").iterdir())
    told += "".join(" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))

    assert password not in told
    assert processes.stop(dev, signal.SIGINT) == 0
    holders = {path.name for path in room.rglob("*") if path.is_file() and password.encode() in path.read_bytes()}
    assert holders == {"auth.conf", "fleet.json"}


def test_reaper_that_is_killed_is_replaced_and_does_its_work(room, start_dev):
    dev, _url = start_dev()
    reaper = reaper_of(room)
    reaper.kill()
    until(lambda: reaper_of(room) not in {None, reaper}, "a new reaper")

    dev.kill()
    dev.wait()

    until(lambda: not alive_in(room), "everybody is gone")


def test_worker_that_dies_is_restarted_and_reported(room, start_dev):
    dev, url = start_dev()
    ready = room / ".chordage" / "ready" / "turns"
    first = ready.read_text().strip()

    psutil.Process(int(first)).kill()

    until(lambda: text_of(ready) not in {"", first}, "another one is ready")
    assert "turns was killed by SIGKILL; it is started again in 0.5 s" in (room.parent / "dev.log").read_text()
    assert answer_of(url) == "answered"
    assert processes.stop(dev, signal.SIGTERM) == 0


def text_of(file):
    """Empty where there is no such file at the moment."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""


def test_turn_continues_after_everything_was_killed_in_the_middle_of_it(room, start_dev):
    (room / "day_out.py").write_text(gated_tool.TOOL)
    (room / "script.yaml").write_text(SLOW_SCRIPT)
    first, _url = start_dev()
    sent = subprocess.run([*CHORDAGE, "submit", "Hello"], cwd=room, capture_output=True, text=True, check=True)
    turn_id = sent.stdout.strip()
    until((room / "begun").exists, "the tool runs")

    while killed := alive_in(room):
        kill(killed)
    first.wait()
    (room / "gate").touch()
    dev, _url = start_dev()

    told = until(lambda: _answer(room, turn_id), "the turn is answered")
    assert told == "The gate is open."
    assert processes.stop(dev, signal.SIGINT) == 0


def _answer(room, turn_id):
    """From the database: a turn of the operator's is none that a caller over HTTP may read."""
    store = Store(fleet_file.running_in(room / ".chordage").database_url)
    try:
        return views.turn(store, turn_id).answer
    finally:
        store.close()


def test_message_of_a_plain_celery_app_becomes_a_turn_without_naming_a_queue(room, start_dev):
    dev, _url = start_dev()
    fleet = fleet_file.running_in(room / ".chordage")
    script = (
        "import sys; from celery import Celery; app = Celery('visitor', broker=sys.argv[1], backend=sys.argv[1]);"
        "prefix = {'global_keyprefix': 'chordage:celery:'};"
        "app.conf.update(broker_transport_options=prefix, result_backend_transport_options=prefix);"
        "sent = app.send_task('turns.submit', kwargs={'text': 'Hello'}); print(sent.get(timeout=120)); sent.forget()"
    )

    sent = subprocess.run(
        [sys.executable, "-c", script, fleet.redis_url],
        capture_output=True,
        text=True,
        check=True,
        timeout=2 * PATIENCE,
    )

    store = Store(fleet.database_url)
    until(lambda: views.turn(store, sent.stdout.strip()).disposition, "the turn is done")
    store.close()
    assert processes.stop(dev, signal.SIGINT) == 0
