"""The command as a whole: what it lists, what it costs, and how it fails."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from chordage.orchestrator.core.errors import InvalidMessage, Unavailable
from chordage.workers.cli import COMMANDS, main, output


def test_help_lists_every_command_and_imports_none_of_them():
    script = (
        "import sys; from chordage.workers.cli import main; main(['--help'], standalone_mode=False);"
        "print([m for m in sys.modules if m in ('celery', 'rich', 'fastapi') or m.startswith('chordage.workers.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_has_help(name):
    result = CliRunner().invoke(main, [name, "--help"])

    assert result.exit_code == 0
    assert f"Usage: main {name}" in result.output


def test_misspelt_command_is_reported_with_the_nearest_one():
    result = CliRunner().invoke(main, ["subnit"])

    assert result.exit_code == 2
    assert "there is no command 'subnit'; did you mean submit?" in result.output


def test_command_like_no_other_is_simply_unknown():
    result = CliRunner().invoke(main, ["xyzzy"])

    assert result.exit_code == 2
    assert "there is no command 'xyzzy'\n" in result.output


def test_version_is_printed():
    assert CliRunner().invoke(main, ["--version"]).output.startswith("chordage ")


def test_exit_code_distinguishes_bad_input_from_failures():
    assert output.exit_code(InvalidMessage("text is blank", field="text")) == 2
    assert output.exit_code(Unavailable("Redis does not answer")) == 1


def test_bug_of_ours_keeps_its_traceback(monkeypatch):
    def broken(**_):
        raise ZeroDivisionError

    monkeypatch.setattr("chordage.workers.fleet.fleet_file.load", broken)

    result = CliRunner().invoke(main, ["turns"])

    assert isinstance(result.exception, ZeroDivisionError)


def test_ctrl_c_prints_one_word_and_exits_with_the_code_of_a_shell(monkeypatch):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr("chordage.workers.fleet.fleet_file.load", interrupted)

    result = CliRunner().invoke(main, ["turns"])

    assert (result.exit_code, result.stderr) == (130, "chordage: interrupted\n")
