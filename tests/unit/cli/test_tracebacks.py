"""Former tracebacks of ours are errors of one line: where a fleet cannot write, and Ctrl-C while it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from chordage.workers.cli import main
from support.plain_room import forget_settings, write_room

COMMAND = Path(__file__).parents[3] / "workers" / "command.py"


@pytest.mark.parametrize("command", ["start", "run", "dev"])
def test_state_folder_that_cannot_be_written_is_reported_with_the_setting(monkeypatch, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    write_room(tmp_path)
    monkeypatch.setenv("CHORDAGE_STATE", "/proc/nowhere")  # as in a room that is read-only
    result = CliRunner().invoke(main, [command])
    assert result.exit_code == 1
    assert "the state folder /proc/nowhere cannot be written (" in result.stderr
    assert "CHORDAGE_STATE" in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_ctrl_c_while_the_package_is_imported_is_an_end_and_no_traceback(tmp_path):
    (tmp_path / "chordage").mkdir()
    (tmp_path / "chordage" / "__init__.py").write_text("raise KeyboardInterrupt\n")
    script = f"import runpy; runpy.run_path({str(COMMAND)!r})['main']()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_program_is_installed_so():
    from importlib.metadata import entry_points

    (program,) = entry_points(group="console_scripts", name="chordage")
    assert program.value == "chordage_command:main"
