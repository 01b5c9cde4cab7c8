"""Processes that are forked off, or killed: no connection is shared, and no server outlives whoever started it."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    print(os.getpid(), kit.call("kit_pid").content, flush=True)
    os.write(tell, b"!")
    signal.pause()
os.read(told, 1)
print(kit.call("kit_pid").content, flush=True)
signal.pause()
"""


@pytest.fixture
def parent(tmp_path):
    program = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, tmp_path], stdout=subprocess.PIPE, text=True, cwd=ROOT / "tests"
    )
    yield program
    program.kill()
    program.communicate()


def test_a_forked_process_has_a_server_of_its_own_and_keeps_no_other_alive(parent):
    of_parent = int(parent.stdout.readline())
    child, of_child = map(int, parent.stdout.readline().split())
    again = int(parent.stdout.readline())

    assert of_child != of_parent
    assert again == of_parent

    parent.kill()
    until(lambda: not is_alive(of_parent), "the server of the killed process has ended", patience=10)
    assert is_alive(child)
    assert is_alive(of_child)

    subprocess.run(["kill", "-9", str(child)], check=True)
    until(lambda: not is_alive(of_child), "the server of the forked process has ended", patience=10)
