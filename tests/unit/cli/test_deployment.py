"""Procfile and docker-compose.yml start commands that exist, with options they have."""

from __future__ import annotations

import shlex
from importlib.util import find_spec

import pytest
import yaml

from chordage.workers.cli import main
from support.repository import ROOT


def procfile():
    lines = (ROOT / "Procfile").read_text().splitlines()
    entries = dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {name: shlex.split(command.replace("${PORT:-8630}", "8630")) for name, command in entries.items()}


def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def ours():
    return {name: service for name, service in compose()["services"].items() if service.get("image") == "chordage"}


COMMANDS = [
    command
    for command in [*procfile().values(), *(service["command"] for service in ours().values())]
    if command[1] != "poll" or find_spec("chordage.workers.cli.poll")
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command_is_one_of_ours_and_its_options_fit(command):
    program, name, *options = command

    assert program == "chordage"
    found = main.get_command(main.make_context("chordage", ["--help"], resilient_parsing=True), name)
    assert found.make_context(name, list(options)).command is found


def test_both_start_the_whole_fleet():
    assert set(procfile()) == {"web", "beat", "flower", "turns", "tools", "chat", "chat-tools"}
    assert set(compose()["services"]) == {*procfile(), "postgres", "redis", "migrate", "poll"}


def test_poll_is_started_where_there_is_something_to_poll():
    assert compose()["services"]["poll"]["profiles"] == ["channels"]
    assert "# poll: chordage poll\n" in (ROOT / "Procfile").read_text()


def test_nobody_of_ours_starts_before_the_services_and_the_schema():
    for name, service in ours().items():
        waits = service["depends_on"]
        assert waits["postgres"] == waits["redis"] == {"condition": "service_healthy"}
        assert name == "migrate" or waits["migrate"] == {"condition": "service_completed_successfully"}


def test_services_that_are_waited_for_can_say_that_they_are_healthy():
    services = compose()["services"]

    assert all(
        "healthcheck" in services[name] for name in ("postgres", "redis", "web", "flower", "turns", "tools", "chat")
    )


def test_redis_keeps_what_it_is_given():
    assert compose()["services"]["redis"]["command"][1:] == ["--appendonly", "yes", "--maxmemory-policy", "noeviction"]


def test_the_procfile_listens_on_this_machine_alone():
    assert "--host" not in procfile()["web"]
    assert "--address" not in procfile()["flower"]


def test_nothing_is_open_to_the_network_and_no_password_is_fixed():
    text = (ROOT / "docker-compose.yml").read_text()
    ports = [port for service in compose()["services"].values() for port in service.get("ports", [])]

    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert text.count("dev-only") == text.count(":-dev-only") + text.count(":-dev:dev-only") == 3
