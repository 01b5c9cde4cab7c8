"""Procfile, docker-compose.yml and the units of examples/deploy start commands that exist, with options they have."""

from __future__ import annotations

import configparser
import re
import shlex

import pytest
import yaml

from chordage.config.settings import SECRETS_DIR, Settings
from chordage.workers.cli import main
from support.repository import ROOT


def procfile():
    lines = (ROOT / "Procfile").read_text().splitlines()
    entries = dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {name: shlex.split(command.replace("${PORT:-8630}", "8630")) for name, command in entries.items()}


def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


class ProductionLoader(yaml.SafeLoader):
    """`!reset` takes a value of the first file away."""


RESET = object()
ProductionLoader.add_constructor("!reset", lambda *_: RESET)


def production():
    return yaml.load((ROOT / "docker-compose.production.yml").read_text(), Loader=ProductionLoader)  # noqa: S506 - safe


def merged():
    """The environment of each service with both files, as Compose merges them."""
    more = production()["services"]
    return {
        name: {
            key: value
            for key, value in (service.get("environment", {}) | more.get(name, {}).get("environment", {})).items()
            if value is not RESET
        }
        for name, service in compose()["services"].items()
    }


def ours():
    return {name: service for name, service in compose()["services"].items() if service.get("image") == "chordage"}


DEPLOY = ROOT / "examples" / "deploy"


def supervisor():
    file = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=(";",))
    file.read(DEPLOY / "supervisord.conf")
    return {name.partition(":")[2]: file[name] for name in file.sections() if name.startswith("program:")}


def systemd():
    lines = {file.stem: file.read_text().strip() for file in (DEPLOY / "env").glob("*.env")}
    return {name: ["chordage", *shlex.split(line.removeprefix("CHORDAGE_COMMAND="))] for name, line in lines.items()}


COMMANDS = [
    *procfile().values(),
    *(service["command"] for service in ours().values()),
    *(shlex.split(program["command"]) for program in supervisor().values()),
    *systemd().values(),
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


def test_no_process_of_ours_starts_before_the_services_and_the_schema():
    for name, service in ours().items():
        waits = service["depends_on"]
        assert waits["postgres"] == waits["redis"] == {"condition": "service_healthy"}
        assert name == "migrate" or waits["migrate"] == {"condition": "service_completed_successfully"}


def test_required_services_have_health_checks():
    services = compose()["services"]

    assert all(
        "healthcheck" in services[name] for name in ("postgres", "redis", "web", "flower", "turns", "tools", "chat")
    )


def test_redis_keeps_its_data():
    assert compose()["services"]["redis"]["command"][1:] == ["--appendonly", "yes", "--maxmemory-policy", "noeviction"]


def test_the_procfile_listens_on_this_machine_alone():
    assert "--host" not in procfile()["web"]
    assert "--address" not in procfile()["flower"]


def test_nothing_is_open_to_the_network_and_no_password_is_fixed():
    text = (ROOT / "docker-compose.yml").read_text()
    ports = [port for service in compose()["services"].values() for port in service.get("ports", [])]

    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert text.count("dev-only") == text.count(":-dev-only") + text.count(":-dev:dev-only") == 3


def test_production_has_no_password_and_reads_secrets_from_files():
    services = production()["services"]
    secrets = {name: service["secrets"] for name, service in services.items()}

    assert "dev-only" not in str(merged())
    assert "dev-only" not in (ROOT / "docker-compose.production.yml").read_text()
    assert set(secrets) == {"postgres", *ours()}
    assert merged()["postgres"]["POSTGRES_PASSWORD_FILE"] == "/run/secrets/" + secrets["postgres"][0]
    for name in ours():
        assert merged()[name][SECRETS_DIR] == "/run/secrets"
        assert "CHORDAGE_DATABASE_URL" not in merged()[name], "a variable would win over the file"
        assert {secret.upper() for secret in secrets[name]} == {"CHORDAGE_DATABASE_URL", "CHORDAGE_METRICS_TOKEN"}
    assert {secret for listed in secrets.values() for secret in listed} == production()["secrets"].keys()
    assert merged()["flower"]["FLOWER_BASIC_AUTH"].startswith("${FLOWER_BASIC_AUTH:?"), "fail, and say what is missing"


def test_secrets_do_not_go_to_the_builder_nor_into_the_repository():
    assert "/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"


@pytest.mark.parametrize("name", compose()["services"])
def test_service_has_limits_restarts_and_logs_that_are_rotated(name):
    service = compose()["services"][name]

    assert service["restart"] == ("no" if name == "migrate" else "unless-stopped")
    assert service["deploy"]["resources"]["limits"].keys() == {"memory", "cpus"}
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}


def test_the_image_names_its_user_by_number():
    assert re.search(r"^USER 10001$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_every_program_of_supervisor_is_started_again_and_workers_have_the_time_of_their_grace():
    grace = Settings.model_fields["soft_shutdown"].default
    for name, program in supervisor().items():
        assert program["autorestart"] == "true"
        if name in {"turns", "tools"}:
            assert int(program["stopwaitsecs"]) > grace + 5
            assert "stopasgroup" not in program, "a worker ends its children itself"


def test_the_units_of_systemd_restart_and_name_processes_that_are_there():
    unit = (DEPLOY / "chordage@.service").read_text()
    wanted = re.findall(r"chordage@(\w+)\.service", (DEPLOY / "chordage.target").read_text())

    assert "Restart=always" in unit
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > Settings.model_fields["soft_shutdown"].default + 5
    assert set(wanted) == set(systemd())


def test_what_is_built_is_copied_into_the_build_and_nothing_else():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    taken = {line[1:] for line in lines if line.startswith("!")}

    assert "*" in lines
    assert taken >= {"pyproject.toml", "README.md", "LICENSE", ".import", "orchestrator", "tasks", "workers", "config"}
    assert not taken & {".git", ".venv", "tests"}
    assert all((ROOT / path).exists() for path in taken)


def test_tasks_of_a_room_can_get_their_ids_in_a_container():
    (room,) = [mount for mount in ours()["beat"]["volumes"] if ":/room" in mount]

    assert not room.endswith(":ro")
    assert "CHORDAGE_STATE=/state" in (ROOT / "Dockerfile").read_text(), "else the state would lie in the room"


def test_the_room_that_is_mounted_is_the_one_whose_packages_are_installed():
    service = ours()["turns"]

    assert service["build"]["additional_contexts"]["room"] == "${CHORDAGE_ROOM:-./workers/demo}"
    assert "--mount=type=bind,from=room" in (ROOT / "Dockerfile").read_text()
