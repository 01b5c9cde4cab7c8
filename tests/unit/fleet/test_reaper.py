"""The reaper of a fleet that was killed."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from chordage.workers.fleet.reaper import Reaper
from support.waiting import PATIENCE


@pytest.fixture
def member():
    """A group of its own, as every member of a fleet is."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_replaced_reaper_starts_with_the_watched_processes(tmp_path, member, monkeypatch):
    """The fleet is killed before it could write to it."""
    with (tmp_path / "lock").open("w") as lock:
        reaper = Reaper(lock)
        reaper.watch(member.pid, 0)
        reaper._process.kill()
        reaper._process.wait()
        monkeypatch.setattr(reaper, "_write", lambda line: None)
        reaper.restart_if_dead()
        reaper.close()

    assert member.wait(PATIENCE) is not None


def test_a_process_that_has_the_number_of_an_old_member_is_left_alone(tmp_path, member):
    with (tmp_path / "lock").open("w") as lock:
        reaper = Reaper(lock)
        reaper.watch(member.pid, 0)
        reaper._write(f"watch {member.pid} 0 1")  # began long before this one, which has its number now
        reaper.close()

    assert member.poll() is None


def test_a_process_is_watched_though_the_fleet_was_killed_the_moment_it_was_started(tmp_path):
    """The fleet never comes to say a word about it: the process does so itself, before it is the program."""
    with (tmp_path / "lock").open("w") as lock:
        reaper = Reaper(lock)
        reaper._write = reaper.watch = lambda *_: None
        process = reaper.launch(0)([sys.executable, "-c", "import time; time.sleep(60)"])
        reaper.close()

    assert process.wait(PATIENCE) is not None


def test_nothing_is_started_that_no_reaper_would_end(tmp_path):
    mark = tmp_path / "began"
    with (tmp_path / "lock").open("w") as lock:
        reaper = Reaper(lock)
        reaper._process.kill()
        reaper._process.wait()
        process = reaper.launch(0)(["/usr/bin/touch", str(mark)])

        assert process.wait(PATIENCE) == -signal.SIGPIPE
        assert not mark.exists()

        reaper.restart_if_dead()
        reaper.close()


def test_what_is_launched_reads_nothing_and_leads_a_group_of_its_own(tmp_path):
    told = tmp_path / "told"
    with (tmp_path / "lock").open("w") as lock:
        reaper = Reaper(lock)
        program = "import os, sys; print(repr(sys.stdin.read()), os.getpid() == os.getpgid(0), sys.argv[1:])"
        with told.open("wb") as out:
            process = reaper.launch(0)([sys.executable, "-c", program, "a b", "$HOME"], stdout=out)
        assert process.wait(PATIENCE) == 0
        reaper.close()

    assert told.read_text() == "'' True ['a b', '$HOME']\n"


def test_a_member_that_was_released_is_left_alone(tmp_path, member):
    with (tmp_path / "lock").open("w") as lock:
        reaper = Reaper(lock)
        reaper.watch(member.pid, 0)
        reaper.release(member.pid)
        reaper.close()

    assert member.poll() is None
