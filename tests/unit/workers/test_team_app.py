"""Which Celery app is the current one in our processes: the team's, or one that Celery makes. Never ours."""

from __future__ import annotations

import itertools
import threading

import pytest
from celery import Celery, _state, current_app

from chordage.config.settings import load
from chordage.orchestrator.core.errors import ConfigError
from chordage.workers import room_check, team_app
from chordage.workers.app import make_app
from support.plain_room import forget_settings

NUMBERS = itertools.count()  # a module is imported once by its name
REDIS = "redis://127.0.0.1:1/0"
PROJECT = """
from celery import Celery
app = Celery("proj", set_as_current=False)
app.conf.imports = [{imports}]
no_app = 17
"""


@pytest.fixture(autouse=True)
def back_again():
    before, _state._tls.current_app = _state._tls.current_app, None
    yield
    _state._tls.current_app = before


@pytest.fixture
def project(tmp_path):
    def write(imports: str = "", source: str = PROJECT) -> str:
        name = f"team_project_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(source.replace("{imports}", imports))
        return name

    return write


def settings(tmp_path, name: str | None):
    return load(room=tmp_path, redis_url=REDIS, celery_app=name)


def in_another_thread() -> str:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(current_app.main))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("form", ["{}:app", "{}", "{}.app"])
def test_the_app_of_the_project_is_current_in_every_thread(tmp_path, project, form) -> None:
    team_app.make_current(settings(tmp_path, form.format(project())))

    assert (current_app.main, in_another_thread()) == ("proj", "proj")


def test_what_its_workers_import_is_imported(tmp_path, project) -> None:
    tasks = project(source="from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n")
    team_app.make_current(settings(tmp_path, f"{project(repr(tasks))}:app"))

    assert (tmp_path / f"{tasks}.ran").exists()


def test_without_one_it_is_as_if_we_were_not_there(tmp_path) -> None:
    make_app(settings(tmp_path, None)).set_default()
    team_app.make_current(settings(tmp_path, None))

    assert (current_app.main, in_another_thread()) == ("default", "default")


def test_to_make_our_app_changes_nothing_for_a_program_that_has_one(tmp_path, monkeypatch) -> None:
    """A web process of the team that uses `chordage.client`."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "their.settings")  # Celery makes an app the default for its sake
    theirs = Celery("theirs", set_as_current=False, fixups=[])
    theirs.set_default()
    make_app(settings(tmp_path, None))
    assert (current_app.main, in_another_thread()) == ("theirs", "theirs")

    _state.default_app = None
    make_app(settings(tmp_path, None))
    assert in_another_thread() == "default"


FAULTS = {
    "nowhere_at_all:app": "there is no module nowhere_at_all; install it, put it into the room, or set PYTHONPATH",
    "{here}:nothing": "module {here} has no 'nothing'",
    "{here}:no_app": "that is 17 and no Celery app; give module:app",
    "{broken}:app": "importing it raised ZeroDivisionError: division by zero ({folder}/{broken}.py:3)",
    "{ours}:app": "that is Chordage's own app",
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_of_the_app_is_reported_in_one_line(tmp_path, project, name, monkeypatch) -> None:
    words = {
        "here": project(), "broken": project(source="\n\n1 / 0\n"), "folder": tmp_path,
        "ours": project(source="from celery import Celery\napp = Celery('chordage', set_as_current=False)\n"),
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    with pytest.raises(ConfigError) as told:
        team_app.make_current(settings(tmp_path, name.format(**words)))

    assert str(told.value).startswith(f"setting celery_app ({name.format(**words)}): ")
    assert FAULTS[name].format(**words) in str(told.value)
    assert "\n" not in str(told.value)

    monkeypatch.setenv("CHORDAGE_CELERY_APP", name.format(**words))
    assert str(told.value) in [fault.text for fault in room_check.check().faults]


def test_check_names_an_around_that_is_not_there(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    monkeypatch.setenv("CHORDAGE_AROUND_TOOLS", "nowhere:around")

    assert any("setting around_tools (nowhere:around)" in fault.text for fault in room_check.check().faults)
