"""`chordage web` as a process of its own: the port it finds, and what it says of the address it listens on."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager

import httpx
import pytest
from click.testing import CliRunner

from chordage.workers.cli import main
from support import processes
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.redis


@pytest.fixture
def environ(settings, monkeypatch):
    monkeypatch.setenv("CHORDAGE_ROOM", str(settings.room_path))
    monkeypatch.setenv("CHORDAGE_DATABASE_URL", settings.database)
    monkeypatch.setenv("CHORDAGE_REDIS_URL", settings.redis)


@contextmanager
def web(folder, *options):
    """Its words so far."""
    said = folder / "said"
    command = [sys.executable, "-m", "chordage.workers.cli", "web", *options]
    process = processes.spawn(command, said, cwd=folder)
    try:
        until(lambda: "HTTP on" in said.read_text(), "it has a port")
        yield said.read_text
    finally:
        processes.stop(process)


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize("more", [(), ("--processes", "2")], ids=["one", "two"])
def test_port_0_takes_a_free_port_and_prints_it(tmp_path, more):
    with web(tmp_path, "--port", "0", *more) as said:
        url = re.search(r"HTTP on (http://127\.0\.0\.1:\d+)", said())[1]
        until(lambda: _answers(url), "it answers")
        assert httpx.get(url, headers={"Host": "evil.example"}, timeout=PATIENCE).status_code == 421
        assert "WARNING" not in said()


@pytest.mark.usefixtures("environ")
def test_process_that_is_slow_to_start_is_not_replaced(monkeypatch):
    """uvicorn kills one that does not answer within 5 s, and on a busy machine Python alone takes longer to import."""
    import uvicorn

    options = {}
    monkeypatch.setenv("CHORDAGE_HOST", "127.0.0.1")  # and is put back behind the test
    monkeypatch.setattr(uvicorn, "run", lambda _app, **given: options.update(given))

    result = CliRunner().invoke(main, ["web", "--processes", "2"])

    assert result.exit_code == 0, result.output
    assert uvicorn.Config("app", **options).timeout_worker_healthcheck >= 60


def _answers(url):
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.usefixtures("environ")
def test_listening_beyond_this_machine_needs_a_key(monkeypatch):
    """uvicorn makes the app in this process, or in others, and asks the environment for the address."""
    import uvicorn

    from chordage.workers.web import make_app

    monkeypatch.setenv("CHORDAGE_HOST", "127.0.0.1")  # and is put back behind the test
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: make_app())

    refused = CliRunner().invoke(main, ["web", "--host", "10.1.2.3"])
    in_its_process = refused_by(make_app, monkeypatch)
    made = CliRunner().invoke(main, ["keys", "create", "n", "--scope", "read"])
    result = CliRunner().invoke(main, ["web", "--host", "10.1.2.3"])

    assert (refused.exit_code, "chordage keys create NAME" in refused.stderr) == (1, True)
    assert "chordage keys create NAME" in in_its_process
    assert made.exit_code == 0, made.output
    assert result.exit_code == 0, result.output


def refused_by(make_app, monkeypatch):
    monkeypatch.setenv("CHORDAGE_HOST", "10.1.2.3")
    with pytest.raises(SystemExit) as ended:
        make_app()
    return str(ended.value)
