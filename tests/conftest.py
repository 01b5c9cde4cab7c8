"""What every test gets: the `support` package on the path, its fixtures, the network guard, the rule about skips."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import structlog
from celery import _state
from httpx._transports import default
from hypothesis import HealthCheck, settings
from structlog.dev import plain_traceback

HERE = Path(__file__).parent
NEED_MCP = ("unit/gateways/mcp", "unit/cli/test_mcp.py", "flow/test_mcp_servers.py", "live/faults/test_mcp_live.py")
LONGEST = "test_lowest_versions.py"
LAST = HERE / "live" / "http"  # short tests, which fill the time in which the others wait for leases to expire
CRASH_POINT = "at"  # the parameter of tests that crash at each commit; one in three of them is drawn for a run
sys.path.append(str(HERE))

from support.draws import DRAW, ONE_OF, draw, is_drawn  # noqa: E402 - it is on the path now

pytest_plugins = ("support.skips", "support.network", "support.postgres", "support.valkey", "support.databases")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--both-ways", action="store_true", help="run all of tests/flow without the pipeline too")
    parser.addoption("--minutes", type=float, help="how long tests/live/chaos lasts; half a minute by default")
    parser.addoption("--seed", type=int, default=1, help="from which tests/live/chaos draws turns and faults")
    parser.addoption("--without", help="a guard of support.sabotage that tests run without; `all`: one after the other")
    parser.addoption("--placement", help="where calls run in the tests of tests/flow that draw it")
    parser.addoption("--cipher", action="store_true", help="encrypt contents in all of tests/flow")
    parser.addoption("--one-of", type=int, default=1, help="draw one of so many tests, as of the crash points")


def pytest_report_header() -> str:
    return f"one of {ONE_OF} crash points is drawn by {DRAW}={draw()}; `all` runs every one, and more examples"


def pytest_configure() -> None:
    """How long an example takes says nothing on a busy machine, so Hypothesis sets it no limit, and none to making it.

    A background job of a shell ignores Ctrl-C, and so would every process that the tests start. Where bytecode is
    not kept, each of these processes would compile all of the package for itself.

    A logger that a test of a command has used would keep its processors, and no later test could capture its lines.
    Every client of httpx would read the certificates of all authorities, which takes as long as many a test. So does
    an exception in the log where it is drawn in a frame, with its code in colours and its variables.
    """
    settings.register_profile("chordage", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("chordage")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    draw()
    configure = structlog.configure
    structlog.configure = lambda *args, **kwargs: configure(*args, **{**kwargs, "cache_logger_on_first_use": False})
    structlog.dev.RichTracebackFormatter.__call__ = lambda _self, out, exc_info: plain_traceback(out, exc_info)
    httpx.create_ssl_context = default.create_ssl_context = functools.cache(httpx.create_ssl_context)


def pytest_sessionstart() -> None:
    """A run without a guard, which tests/live/chaos/test_sabotage.py starts: some test of it has to fail."""
    if "RIG_WITHOUT" in os.environ:
        from support import chaos_worker

        chaos_worker.take_part()


@pytest.fixture(autouse=True)
def default_celery_app() -> Iterator[None]:
    """An app that a test makes is not the default of the next."""
    before = _state.default_app
    yield
    _state.default_app = before


def _one_of(item: pytest.Item) -> int:
    callspec = getattr(item, "callspec", None)
    at_a_crash_point = callspec is not None and CRASH_POINT in callspec.params
    of_all: int = item.config.getoption("--one-of")
    return max(of_all, ONE_OF) if at_a_crash_point else of_all


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Live tests kill processes and measure recoveries: under xdist the tests of a file stay together on one worker.
    Files that take long come first, or one worker would have to wait for them at the end.
    """
    items.sort(key=lambda item: (item.path.name != LONGEST, item.path.is_relative_to(LAST)))
    for item in items:
        if item.path.is_relative_to(HERE / "live"):
            item.add_marker(pytest.mark.xdist_group("live"))
        if any(item.path.is_relative_to(HERE / path) for path in NEED_MCP):
            item.add_marker(pytest.mark.mcp)
    if len({item.nodeid.partition("[")[0] for item in items}) > 1:  # a test that was named runs whole
        drawn = {item: is_drawn(item.nodeid, _one_of(item)) for item in items}
        config.hook.pytest_deselected(items=[item for item, runs in drawn.items() if not runs])
        items[:] = [item for item, runs in drawn.items() if runs]
