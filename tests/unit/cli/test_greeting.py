"""What a fleet prints once it is up: the Celery lines also work outside of `chordage dev`."""

from __future__ import annotations

import re
from types import SimpleNamespace

import celery
import pytest

from chordage.config.settings import load
from chordage.workers.cli import fleet
from support.plain_room import forget_settings
from support.repository import ROOT

URL = "redis://127.0.0.1:7001/0"


class RecordingCelery:
    """An app that keeps what it was made of and what it was asked to send."""

    apps: list[RecordingCelery]

    def __init__(self, _name: str, **addresses: str) -> None:
        self.addresses = addresses
        self.conf = SimpleNamespace()
        self.apps.append(self)

    def send_task(self, name: str, *, kwargs: dict[str, str], queue: str) -> SimpleNamespace:
        self.sent = (name, sorted(kwargs)[:1], queue)
        return SimpleNamespace(get=lambda timeout: f"turn within {timeout}")


@pytest.fixture
def greeting(monkeypatch, tmp_path, capsys):
    def greet(redis_url: str) -> str:
        settings = load(redis_url=redis_url, room=tmp_path, state=tmp_path)
        member = SimpleNamespace(role=SimpleNamespace(url=None))
        fleet._greet(SimpleNamespace(settings=settings, members=[member], valkey=None, state=tmp_path), 1.0)
        return capsys.readouterr().out

    forget_settings(monkeypatch)
    return greet


def executed(monkeypatch, code: str, **names: str) -> tuple[object, ...]:
    monkeypatch.setattr(celery, "Celery", RecordingCelery)
    monkeypatch.setattr(RecordingCelery, "apps", [], raising=False)
    exec(code, names)
    (app,) = RecordingCelery.apps
    return app.addresses, vars(app.conf), app.sent, names["turn_id"]


def snippet(printed: str) -> str:
    lines = [line.removeprefix("  ") for line in printed.splitlines()]
    return "\n".join(lines[lines.index(f'REDIS_URL = "{URL}"') : lines.index("turn_id = result.get(timeout=10)") + 1])


def test_celery_lines_do_what_those_of_the_readme_do(greeting, monkeypatch):
    (readme,) = re.findall(
        r"```python\n(from celery import Celery\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )

    printed = executed(monkeypatch, "from celery import Celery\n" + snippet(greeting(URL)))
    assert printed == executed(monkeypatch, readme, REDIS_URL=URL)
    assert printed == (
        {"broker": URL, "backend": URL},
        {
            "broker_transport_options": {"global_keyprefix": "chordage:celery:"},
            "result_backend_transport_options": {"global_keyprefix": "chordage:celery:"},
        },
        ("turns.submit", ["text"], "chat"),
        "turn within 10",
    )


def test_password_of_redis_is_not_printed_where_a_log_may_keep_it(greeting, tmp_path):
    printed = greeting("redis://:secret@127.0.0.1:7001/0")

    assert "secret" not in printed
    assert f'  REDIS_URL = "<redis_url of {tmp_path / "fleet.json"}>"' in printed.splitlines()
