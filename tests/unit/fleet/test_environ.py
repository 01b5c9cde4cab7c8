"""Settings survive the way through the environment unchanged."""

from __future__ import annotations

from chordage.config.settings import Budgets, Settings, as_environment
from support.plain_room import forget_settings


def test_settings_made_of_their_environment_are_the_same(monkeypatch, tmp_path):
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chordage.toml").write_text('port = 1\nlog_level = "ERROR"\n')
    settings = Settings(
        room=tmp_path,
        redis_url="redis://:secret@host/0",
        intake_queues=("celery", "other"),
        budgets=Budgets(chat=3, will=0),
        lease=2.5,
        beat=1.0,
        port=9000,
    )

    for name, value in as_environment(settings).items():
        monkeypatch.setenv(name, value)

    assert Settings() == settings
