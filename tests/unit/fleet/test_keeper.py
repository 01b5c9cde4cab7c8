"""The keeper, beside a fleet that says nothing more."""

from __future__ import annotations

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


def test_a_member_that_was_released_is_left_alone(tmp_path, member):
    with (tmp_path / "lock").open("w") as lock:
        keeper = Keeper(lock)
        keeper.watch(member.pid, 0)
        keeper.release(member.pid)
        keeper.close()

    assert member.poll() is None
