"""The keeper, beside a fleet that says nothing more."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from chordage.workers.fleet.keeper import Keeper


@pytest.fixture
def member():
    """A group of its own, as every member of a fleet is."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_keeper_that_replaces_another_knows_from_its_start_whom_it_watches(tmp_path, member, monkeypatch):
    """The fleet is killed before it could say a word to it."""
    with (tmp_path / "lock").open("w") as lock:
        keeper = Keeper(lock)
        keeper.watch(member.pid, 0)
        keeper._process.kill()
        keeper._process.wait()
        monkeypatch.setattr(keeper, "_say", lambda line: None)
        keeper.see_to()
        keeper.close()

    assert member.wait(5) is not None


def test_a_process_that_has_the_number_of_an_old_member_is_left_alone(tmp_path, member):
    with (tmp_path / "lock").open("w") as lock:
        keeper = Keeper(lock)
        keeper.watch(member.pid, 0)
        keeper._say(f"watch {member.pid} 0 1")  # began long before this one, which has its number now
        keeper.close()

    assert member.poll() is None


def test_a_process_is_watched_though_the_fleet_was_killed_the_moment_it_was_started(tmp_path):
    """The fleet never comes to say a word about it: the process does so itself, before it is the program."""
    with (tmp_path / "lock").open("w") as lock:
        keeper = Keeper(lock)
        keeper._say = keeper.watch = lambda *_: None
        process = keeper.launch(0)([sys.executable, "-c", "import time; time.sleep(60)"])
        keeper.close()

    assert process.wait(5) is not None


def test_nothing_is_started_that_no_keeper_would_end(tmp_path):
    mark = tmp_path / "began"
    with (tmp_path / "lock").open("w") as lock:
        keeper = Keeper(lock)
        keeper._process.kill()
        keeper._process.wait()
        process = keeper.launch(0)(["/usr/bin/touch", str(mark)])

        assert process.wait(5) == -signal.SIGPIPE
        assert not mark.exists()

        keeper.see_to()
        keeper.close()


def test_what_is_launched_reads_nothing_and_leads_a_group_of_its_own(tmp_path):
    told = tmp_path / "told"
    with (tmp_path / "lock").open("w") as lock:
        keeper = Keeper(lock)
        program = "import os, sys; print(repr(sys.stdin.read()), os.getpid() == os.getpgid(0), sys.argv[1:])"
        with told.open("wb") as out:
            process = keeper.launch(0)([sys.executable, "-c", program, "a b", "$HOME"], stdout=out)
        assert process.wait(10) == 0
        keeper.close()

    assert told.read_text() == "'' True ['a b', '$HOME']\n"


def test_a_member_that_was_released_is_left_alone(tmp_path, member):
    with (tmp_path / "lock").open("w") as lock:
        keeper = Keeper(lock)
        keeper.watch(member.pid, 0)
        keeper.release(member.pid)
        keeper.close()

    assert member.poll() is None
