"""Missing services: a skip with a reason on a laptop, a failure in CI.

A skipped test proves nothing, so a CI run with one is red, unless its reason begins with "platform:".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NoReturn

import pytest

ALLOWED = "platform:"


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def unavailable(reason: str) -> NoReturn:
    """End the test that needs what is not there."""
    if in_ci():
        pytest.fail(f"{reason} (a skip elsewhere, a failure in CI)", pytrace=False)
    pytest.skip(reason)


def forbidden(reports: Iterable[Any]) -> list[str]:
    """Of the skipped ones, those that may not be skipped in CI, as lines to print."""
    reasons = [(report.nodeid, _reason(report)) for report in reports]
    return [f"{test}: {reason}" for test, reason in reasons if not reason.startswith(ALLOWED)]


def _reason(report: Any) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def pytest_configure(config: pytest.Config) -> None:
    if in_ci():
        config.pluginmanager.register(SkipPolice(), "skip-police")


class SkipPolice:
    """In CI only. The hooks run in the process that collects the reports, with and without xdist."""

    def __init__(self) -> None:
        self._skipped: list[Any] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.append(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.skipped:
            self._skipped.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if forbidden(self._skipped) and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in forbidden(self._skipped):
            terminalreporter.write_line(f"skipped in CI, which is a failure: {line}", red=True)
