"""CI runs the command of README.md, word for word."""

from __future__ import annotations

import os
import re

import yaml

from support.repository import ROOT, project

COMMAND = (
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]' && "
    ".venv/bin/pytest -n 2 --ignore tests/live && .venv/bin/pytest -n 3 --dist loadfile tests/live"
)


def test_ci_ends_with_the_command_of_the_readme():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()

    assert lines[-1] == COMMAND
    assert COMMAND in (ROOT / "README.md").read_text().splitlines()


def test_ci_script_can_be_run():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def workflow():
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    return job


def test_workflow_runs_the_script_and_nothing_else():
    assert [step["run"] for step in workflow()["steps"] if "run" in step] == [".ci/run"]
    assert workflow()["timeout-minutes"] <= 60


def test_workflow_uses_the_oldest_and_the_newest_python():
    minors = re.findall(r"Python :: 3\.(\d+)", "\n".join(project()["project"]["classifiers"]))
    oldest = project()["project"]["requires-python"].removeprefix(">=")

    assert workflow()["strategy"]["matrix"]["python"] == [oldest, f"3.{max(map(int, minors))}"]
    assert oldest == f"3.{min(map(int, minors))}"
