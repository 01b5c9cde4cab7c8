"""The plugin in a pytest run of its own: explored tests, plain ones, and what is wrong with a marker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import ROOT

EXAMPLE = ROOT / "examples" / "testing"
PAGE = ROOT / "docs" / "how-to" / "testing.md"
KEYED = "Payments.provider.pay(order, cents, key=ctx.idempotency_key)"


def run_pytest(folder: Path, *arguments: str) -> str:
    plugins = ("-p", "chordage.testing.plugin", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-c", os.devnull]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # Celery's plugins load Celery
    done = subprocess.run(
        [*command, "--rootdir", str(folder), *arguments],
        cwd=folder,
        check=False,
        env=env,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def write(folder: Path, body: str) -> Path:
    (folder / "test_it.py").write_text(f"import pytest\n\n{body}")
    return folder


@pytest.fixture
def example(tmp_path):
    for file in EXAMPLE.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    return tmp_path


def test_the_example_fails_with_the_report_that_the_page_shows(example):
    output = run_pytest(example)

    report = output[output.index("test_refund_is_paid_once does not hold") : output.index("=== short test summary")]
    shown = report.rpartition("\n===")[0].strip() if "\n===" in report else report.rstrip("= \n")
    assert shown in PAGE.read_text()
    assert "1 failed" in output
    before_summary = output.partition("=== short test summary")[0]  # which repeats it where CI is set
    assert before_summary.count("does not hold when") == 1, "the report stands there once"


def test_the_example_passes_when_the_tool_is_mended_as_the_page_says(example):
    assert KEYED in PAGE.read_text()
    tool = (example / "refunds.py").read_text()
    line = next(line for line in tool.splitlines() if "Payments.provider.pay(order, cents)" in line)
    (example / "refunds.py").write_text(tool.replace(line, f"    {KEYED}"))

    assert "1 passed" in run_pytest(example, "--chordage-schedules", "3")


def test_a_schedule_is_replayed_alone(example):
    output = run_pytest(example, "--chordage-replay", "kill-after-tool:1")

    assert "it was replayed" in output
    assert "1 passed" in run_pytest(example, "--chordage-replay", "plain")


def test_a_token_that_is_none_fails_the_test_and_says_why(example):
    assert "--chordage-replay: schedule 'nonsense': 'nonsense' is none of drop:NUMBER" in run_pytest(
        example, "--chordage-replay", "nonsense"
    )


def test_a_room_is_tested_by_its_folder(tmp_path):
    (tmp_path / "agent.toml").write_text('model = "openai:gpt-4o-mini"\ntools = ["room_tools"]\n')
    (tmp_path / "room_tools.py").write_text(
        'from chordage import tool\n\n@tool(effect="pure")\ndef look_up(order: int) -> int:\n    return order\n'
    )
    write(tmp_path, """
from pathlib import Path
from chordage.testing import World, ScriptedModel

@pytest.fixture
def chordage_room():
    return Path(__file__).parent

def test_it_needs_a_model(chordage_world):
    chordage_world.submit("Hello")
    with pytest.raises(AssertionError, match="nothing speaks for the model 'openai:gpt-4o-mini'"):
        chordage_world.run()

@pytest.mark.chordage_explore(schedules=2)
def test_it_answers(chordage_world):
    world = chordage_world
    world.models["openai:gpt-4o-mini"] = ScriptedModel([
        {"tool_calls": [{"name": "look_up", "arguments": {"order": 17}}]}, "It is {results}."])
    turn = world.submit("Hello")
    world.run()
    world.assert_answered(turn, "It is 17.")
""")  # fmt: skip

    assert "2 passed" in run_pytest(tmp_path)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("@pytest.mark.chordage_explore\ndef test_it():\n    pass\n", "takes the fixture chordage_world"),
        (
            "@pytest.mark.chordage_explore(times=3)\ndef test_it(chordage_world):\n    pass\n",
            "takes schedules=NUMBER, and",
        ),
        (
            "@pytest.mark.chordage_explore(schedules=-1)\ndef test_it(chordage_world):\n    pass\n",
            "a number from 0, not -1",
        ),
    ],
)
def test_a_marker_that_is_wrong_says_what_it_takes(tmp_path, body, problem):
    assert problem in run_pytest(write(tmp_path, body))


def test_a_session_that_does_not_use_it_loads_nothing_of_the_engine(tmp_path):
    body = (
        "import sys\n\ndef test_it():\n    loaded = {'sqlalchemy', 'celery', 'pydantic', 'redis'} & set(sys.modules)\n"
        "    assert loaded == set()\n"
    )

    assert "1 passed" in run_pytest(write(tmp_path, body))
