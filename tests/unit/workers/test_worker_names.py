"""Workers of one machine have names of their own, which their successors take over."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from chordage.workers import worker_plan

HOLDER = """
import sys
from pathlib import Path
from chordage.workers import worker_plan
print(worker_plan.worker_hostname("turns", Path(sys.argv[1]), numbered=True), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def let_go():
    yield
    while worker_plan._held:
        worker_plan._held.pop().close()


@pytest.fixture
def start(tmp_path):
    started = []

    def one() -> tuple[subprocess.Popen, str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process, process.stdout.readline().strip().partition("@")[0]

    yield one
    for process in started:
        process.kill()
        process.communicate()


def test_three_workers_of_a_role_have_three_names_and_a_replacement_inherits_one(start) -> None:
    workers = [start() for _ in range(3)]
    assert [name for _, name in workers] == ["turns-1", "turns-2", "turns-3"]

    second, _ = workers[1]
    second.kill()
    second.wait()
    assert start()[1] == "turns-2"


def test_configured_name_is_unchanged(tmp_path) -> None:
    host = os.uname().nodename
    assert worker_plan.worker_hostname("mine", tmp_path, numbered=False) == f"mine@{host}"
    assert worker_plan.worker_hostname("mine@there", tmp_path, numbered=True) == "mine@there"
    assert not (tmp_path / worker_plan.NAMES_FOLDER).exists()


def test_without_a_writable_folder_processes_have_distinct_names(tmp_path) -> None:
    (tmp_path / "state").write_text("a file, and no folder")

    assert worker_plan.worker_hostname("turns", tmp_path / "state", numbered=True).startswith(f"turns-{os.getpid()}@")


def test_files_are_accessible_only_to_their_owner(tmp_path) -> None:
    worker_plan.worker_hostname("turns", tmp_path, numbered=True)

    assert (tmp_path / worker_plan.NAMES_FOLDER).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / worker_plan.NAMES_FOLDER / "turns-1.lock").stat().st_mode & 0o777 == 0o600
