"""Forked and killed processes: no connection is shared, and no server outlives the process that started it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import psutil
import pytest

from support import processes
from support.mcp_kit import is_alive
from support.repository import ROOT
from support.waiting import until

SCRIPT = """
import os, signal, sys
from pathlib import Path
from support.mcp_kit import Kit

kit = Kit(Path(sys.argv[1]), "old")
print(kit.call("kit_pid").content, flush=True)
told, tell = os.pipe()
if os.fork() == 0:
    print(kit.call("kit_pid").content, flush=True)
    os.write(tell, b"!")
    signal.pause()
os.read(told, 1)
print(kit.call("kit_pid").content, flush=True)
signal.pause()
"""


@pytest.fixture
def parent(tmp_path):
    """Tells the server of the parent, of its child, and of the parent once more."""
    program = processes.spawn([sys.executable, "-c", SCRIPT, tmp_path], tmp_path / "told", cwd=ROOT / "tests")
    yield program
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)  # also a child whose parent the test has killed
    processes.kill_tree(program)


def test_a_forked_process_has_a_server_of_its_own_and_keeps_no_other_alive(parent, tmp_path):
    until(lambda: len((tmp_path / "told").read_text().split()) == 3, "all have told")
    of_parent, of_child, again = map(int, (tmp_path / "told").read_text().split())
    (child,) = (process for process in psutil.Process(parent.pid).children() if process.pid != of_parent)

    assert of_child != of_parent
    assert again == of_parent

    parent.kill()
    until(lambda: not is_alive(of_parent), "the server of the killed process has ended")
    assert is_alive(child.pid)
    assert is_alive(of_child)

    child.kill()
    until(lambda: not is_alive(of_child), "the server of the forked process has ended")
