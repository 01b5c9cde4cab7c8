"""One process of a fleet, tried with small programs."""

from __future__ import annotations

import itertools
import signal
import socket
import sys
import time

import psutil
import pytest

from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.fleet import member as members
from chordage.workers.fleet.member import Member, MemberRole, wait_until_ready
from support.waiting import PATIENCE, until


@pytest.fixture
def start(tmp_path):
    started = []

    def start(program, **options):
        role = MemberRole(name="it", arguments=(sys.executable, "-c", program), **options)
        started.append(Member(role, tmp_path, {"PATH": "", "GREETING": "hello"}))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.kill_group()


def test_member_is_ready_when_its_file_holds_its_own_pid(start):
    member = start("import sys, os; open(sys.argv[2], 'w').write(str(os.getpid())); input()", says_ready=True)
    # input() ends at once: nothing is to be read from a terminal by a member
    member.wait(time.monotonic() + PATIENCE)

    assert member.code == 1
    assert not member.ready, "it is not ready any more"


def test_member_with_a_port_is_ready_when_it_listens_there(start):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        member = start("import time; time.sleep(60)", port=listener.getsockname()[1])
        assert not member.ready
        listener.listen()

        assert member.ready


def test_member_gets_its_environment_and_its_output_goes_to_its_log(start):
    member = start("import os; print(os.environ['GREETING'])")
    member.wait(time.monotonic() + PATIENCE)

    assert member.log_tail() == "hello"
    assert member.code == 0


def test_large_log_is_renamed_at_the_next_start(start, monkeypatch):
    monkeypatch.setattr(members, "LARGE_LOG", 3)
    member = start("print('first')")
    member.wait(time.monotonic() + PATIENCE)
    member.start()
    member.wait(time.monotonic() + PATIENCE)

    assert member.log_tail() == "first"
    assert member.log.with_suffix(".log.1").read_text() == "first\n"


def test_sweeping_up_takes_the_children_that_a_dead_leader_left(start):
    child = "import subprocess, sys; p = subprocess.Popen(['/bin/sleep', '60']); print(p.pid, flush=True)"
    member = start(child)
    member.wait(time.monotonic() + PATIENCE)
    orphan = psutil.Process(int(member.log_tail()))

    member.kill_group()

    until(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE, "the orphan is gone")


def test_member_that_ends_before_it_is_ready_has_the_end_of_its_log_shown(start):
    member = start("print('no luck'); raise SystemExit(3)", says_ready=True)

    with pytest.raises(Unavailable, match=r"it ended with code 3; the end of .*it\.log:\n  no luck"):
        wait_until_ready([member], lambda: None)


def test_member_that_is_never_ready_is_given_up(start):
    member = start("import time; time.sleep(60)", says_ready=True)

    with pytest.raises(Unavailable, match=r"it was not ready within 0\.1 s; .*: it is empty"):
        wait_until_ready([member], lambda: None, patience=0.1)


def test_waiting_ends_when_a_stop_is_requested(start):
    member = start("import time; time.sleep(60)", says_ready=True)
    checks = itertools.count()

    def check():
        if next(checks) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_until_ready([member], check)


def test_signal_reaches_the_leader(start):
    member = start("import time; time.sleep(60)")

    member.send_signal(signal.SIGTERM)

    assert member.wait(time.monotonic() + PATIENCE)
    assert member.code == -signal.SIGTERM


def test_free_port_is_none_that_an_outgoing_connection_may_be_given(monkeypatch, tmp_path):
    """A client that waits for the restart of a server could otherwise hold the server's port."""
    outgoing = tmp_path / "range"
    monkeypatch.setattr(members, "OUTGOING_PORTS", outgoing)
    outgoing.write_text("15001\t60999\n")
    assert members.free_port() == members.LOWEST_PORT

    with socket.socket() as other:
        other.bind(("127.0.0.1", members.LOWEST_PORT))
        assert members.free_port() != members.LOWEST_PORT, "where all of those are taken: one that the system says"
    outgoing.write_text("1024\t65000\n")
    assert members.free_port()
    outgoing.unlink()
    assert members.LOWEST_PORT <= members.free_port() < members.IANA_FIRST


def test_address_without_a_free_port_is_reported():
    with pytest.raises(Unavailable, match=r"no port of 192\.0\.2\.1 is free"):
        members.free_port("192.0.2.1")  # of no machine
