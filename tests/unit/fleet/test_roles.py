"""Which processes run for which loops, and what is said of a loop that has nothing to do."""

from __future__ import annotations

import pytest

from chordage.config.settings import SettingsFault, as_environment, load
from chordage.orchestrator.core.errors import ConfigError
from chordage.workers.fleet import roles
from support.plain_room import forget_settings


@pytest.fixture
def room(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    return tmp_path


def names(*on, with_workers=True, tools=1):
    members = roles.of_fleet(load(loops=on or None), tools=tools, with_workers=with_workers)
    return [role.name for role in members]


def test_server_and_hook_are_one_process_and_workers_bring_a_beat_along(room):
    assert names("server", "hook", tools=2) == ["turns", "tools-1", "tools-2", "web", "beat"]
    assert names("server", with_workers=False) == ["web"]
    assert names("pulse", with_workers=False) == ["beat"]
    assert names("server", "poll", "pulse", with_workers=False) == ["web", "poll", "beat"]


def test_members_know_which_loops_are_on(room):
    told = as_environment(load(loops=("server", "pulse")))

    assert told["CHORDAGE_LOOPS"] == "server,pulse"


def test_loops_of_the_environment_are_read_back(room, monkeypatch):
    monkeypatch.setenv("CHORDAGE_LOOPS", "hook, pulse")

    assert load().loops == ("hook", "pulse")
    assert roles.choose_loops(load(), ()) == ("hook", "pulse")


def test_unknown_loop_is_refused_with_the_known_ones(room, monkeypatch):
    monkeypatch.setenv("CHORDAGE_LOOPS", "servre")

    with pytest.raises(SettingsFault, match=r"setting loops \(CHORDAGE_LOOPS or chordage.toml\).*'server', 'poll'"):
        load()


def test_loops_without_anything_to_do_are_left_out_unless_they_are_requested(room):
    assert roles.choose_loops(load(), ()) == ("server", "hook", "pulse")
    with pytest.raises(ConfigError, match=r"loop 'poll' to do: there is no .*channels\.toml; write one"):
        roles.choose_loops(load(), ("poll",))
    (room / "channels.toml").touch()
    assert roles.choose_loops(load(), ("poll",)) == ("poll",)
    assert roles.choose_loops(load(), ()) == ("server", "poll", "hook", "pulse")
