"""A skip on a laptop is a failure in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import skips

SUPPORT = Path(skips.__file__).parents[1]


def run_pytest(folder, body, *options, **environment):
    (folder / "conftest.py").write_text(
        f"import sys\nsys.path.append({str(SUPPORT)!r})\npytest_plugins = 'support.skips'"
    )
    (folder / "pytest.ini").touch()
    (folder / "test_it.py").write_text(f"import pytest\n{body}")
    clean = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", *options, folder],
        capture_output=True,
        text=True,
        cwd=folder,
        env=clean | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment,
        check=False,
    )


SKIPPING = "def test_skips(): pytest.skip('no such server')\n"


def test_skip_is_listed_with_its_reason_and_does_not_fail_a_laptop(tmp_path):
    run = run_pytest(tmp_path, SKIPPING)

    assert run.returncode == pytest.ExitCode.OK
    assert "SKIPPED [1] test_it.py:2: no such server" in run.stdout


def test_skip_fails_a_ci_run(tmp_path):
    run = run_pytest(tmp_path, SKIPPING + "def test_passes(): pass\n", CI="true")

    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "skipped in CI, which is a failure: test_it.py::test_skips: no such server" in run.stdout


def test_skip_of_a_whole_module_fails_a_ci_run(tmp_path):
    run = run_pytest(tmp_path, "pytest.importorskip('no_such_module')\n", CI="1")

    assert run.returncode == pytest.ExitCode.TESTS_FAILED


def test_skip_fails_a_ci_run_with_parallel_workers_too(tmp_path):
    run = run_pytest(tmp_path, SKIPPING, "-p", "xdist", "-n", "1", CI="true")

    assert run.returncode == pytest.ExitCode.TESTS_FAILED


def test_skip_because_of_the_platform_is_allowed_in_ci(tmp_path):
    run = run_pytest(tmp_path, "def test_skips(): pytest.skip('platform: no such system call')\n", CI="true")

    assert run.returncode == pytest.ExitCode.OK


def test_missing_service_skips_on_a_laptop_and_fails_in_ci(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no server"):
        skips.unavailable("no server")

    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no server"):
        skips.unavailable("no server")


@pytest.mark.parametrize(("value", "means"), [("true", True), ("1", True), ("false", False), ("0", False), ("", False)])
def test_ci_is_recognised_by_the_environment(monkeypatch, value, means):
    monkeypatch.setenv("CI", value)

    assert skips.in_ci() is means
