"""A worker for a reserve of none waits to be ended, and asks for no service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from support.waiting import PATIENCE, until


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGINT])
def test_with_a_reserve_of_none_it_stays_until_it_is_ended(tmp_path, ends):
    ready = tmp_path / "ready"
    command = [sys.executable, "-m", "chordage.workers.cli", "worker", "--reserved", "--ready-file", str(ready)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CHORDAGE_")}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        until(ready.exists, "it is ready")
        assert process.poll() is None
        process.send_signal(ends)
        _, told = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()

    assert process.returncode == 0
    assert told == "chordage: reserve is 0, so no slots are kept for chat and this worker has nothing to do\n"
