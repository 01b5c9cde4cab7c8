"""How commands find the fleet of their folder, and when they do not."""

from __future__ import annotations

import json
import os
import stat

import pytest

from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.workers.fleet import fleet_file, state_lock
from chordage.workers.fleet.fleet_file import FleetAddresses, settings_for_cli
from support.plain_room import forget_settings


@pytest.fixture
def state(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    return tmp_path / ".chordage"


@pytest.fixture
def fleet(state, tmp_path):
    """A fleet runs in this folder, as far as one can see."""
    with state_lock.lock_fleet(state):
        here = FleetAddresses(
            pid=os.getpid(),
            room=str(tmp_path / "room"),
            redis_url="redis://127.0.0.1:7000/0",
            database_url="sqlite:////x.db",
            http_port=9000,
        )
        fleet_file.write(state, here)
        yield here


def test_settings_without_redis_become_those_of_the_fleet_here(fleet, state):
    settings = settings_for_cli()

    assert settings.redis == fleet.redis_url
    assert settings.database == fleet.database_url
    assert str(settings.room_path) == fleet.room
    assert settings.state_path == state
    assert settings.port == 9000


def test_settings_that_name_a_redis_stay_what_they_are(fleet, tmp_path):
    (tmp_path / "chordage.toml").write_text('redis_url = "redis://elsewhere/0"\n')

    settings = settings_for_cli()

    assert settings.redis == "redis://elsewhere/0"
    assert settings.room_path == tmp_path


def test_database_that_is_set_wins_over_the_fleets(fleet, monkeypatch):
    monkeypatch.setenv("CHORDAGE_DATABASE_URL", "sqlite:////mine.db")

    assert settings_for_cli().database == "sqlite:////mine.db"


def test_settings_of_a_command_take_precedence(fleet):
    assert settings_for_cli(port=1234).port == 1234


def test_fleet_that_has_ended_is_not_found(state, tmp_path):
    with state_lock.lock_fleet(state):
        fleet_file.write(
            state, FleetAddresses(pid=1, room=str(tmp_path), redis_url="redis://x", database_url="sqlite://")
        )

    assert fleet_file.running_in(state) is None
    assert settings_for_cli().redis is None


def test_folder_in_which_none_ever_ran_has_none(state):
    assert fleet_file.running_in(state) is None
    assert not state.exists(), "looking leaves nothing behind"


def test_whereabouts_are_for_their_owner_only(fleet, state):
    assert stat.S_IMODE((state / fleet_file.FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"pid": 1})])
def test_damaged_file_is_reported_with_the_remedy(fleet, state, text):
    (state / fleet_file.FILE).write_text(text)

    with pytest.raises(ConfigError, match=r"fleet\.json cannot be read.*delete it"):
        settings_for_cli()


def test_second_fleet_is_refused_with_the_pid_of_the_first(fleet, state):
    with pytest.raises(Unavailable, match=f"is in use by fleet, process {os.getpid()}"):
        state_lock.lock_fleet(state)


def test_fleet_that_was_killed_is_waited_for_until_its_reaper_has_cleaned_up(state):
    with state_lock.lock_fleet(state) as held:
        held.truncate(0)
        held.write("999999999\n")  # no such process: the fleet is dead, and its reaper holds the lock
        held.flush()
        with pytest.raises(Unavailable, match="process 999999999"):
            state_lock.lock_fleet(state, patience=0.2)

    state_lock.lock_fleet(state, patience=0.2).close()
