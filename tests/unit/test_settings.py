"""Settings: what is wrong is refused with its name and what to do, and the documentation knows all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import SecretStr

from chordage.config.settings import (
    SECRETS,
    SECRETS_DIR,
    Settings,
    SettingsFault,
    as_environment,
    load,
    problems,
    unknown_variables,
    variable_of,
)
from support.plain_room import forget_settings

WRONG = [
    ("LOOPS", "server,pol", "input should be 'server', 'poll', 'hook' or 'pulse', not 'pol'"),
    ("RESERVE", "-1", "input should be greater than or equal to 0, not '-1'"),
    ("BOUNDS__CHAT__MAX_QUEUED", "-1", "input should be greater than or equal to 0, not '-1'"),
    ("BOUNDS__CHAT__OVERFLOW", "drop", "input should be 'reject', 'drop_oldest' or 'replace_pending', not 'drop'"),
    ("PULSE", "0", "input should be greater than 0, not '0'"),
    ("PROJECT", "0", "input should be greater than 0, not '0'"),
    ("BUS_KEEP", "0", "input should be greater than or equal to 1, not '0'"),
    ("BUS_KEEP_OF_RUN", "x", "input should be a valid integer"),
    ("BUS_KEEP_SECONDS", "0", "input should be greater than or equal to 1, not '0'"),
    ("DELIVERY_ATTEMPTS", "0", "input should be greater than or equal to 1, not '0'"),
    ("DELIVERY_FIRST", "0", "input should be greater than 0, not '0'"),
    ("DELIVERY_LONGEST", "-1", "input should be greater than 0, not '-1'"),
    ("DELIVERY_TIMEOUT", "0", "input should be greater than 0, not '0'"),
    ("DELIVERIES_AT_ONCE", "0", "input should be greater than or equal to 1, not '0'"),
    ("DELIVERIES_TO_ONE", "0", "input should be greater than or equal to 1, not '0'"),
    ("WEBHOOK_ALLOW", "10.1.2.3/8", "10.1.2.3/8 has host bits set; give networks such as 10.1.0.0/16, separated by"),
    ("WEBHOOK_ALLOW", "home", "'home' does not appear to be an IPv4 or IPv6 network; give networks such as"),
    ("WEBHOOK_SECRET", " ", "is blank: give a secret"),
    ("WEBHOOK_SECRET", "whsec_!", "what follows whsec_ is not base64; give base64, or a secret without whsec_"),
    (
        "OTLP_ENDPOINT",
        "collector:4318",
        "it is no address of a collector: give http:// or https:// with a host, such as",
    ),
    (
        "OTLP_ENDPOINT",
        "http://me:secret@collector",
        "it is no address of a collector: give http:// or https:// with a host",
    ),
    ("TOOL_TIME_LIMIT", "0", "input should be greater than 0, not '0'"),
]


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)


@pytest.mark.parametrize(("name", "value", "told"), WRONG)
def test_setting_that_is_wrong_is_refused_with_its_name_and_what_fits(monkeypatch, name, value, told):
    monkeypatch.setenv(f"CHORDAGE_{name}", value)

    with pytest.raises(SettingsFault) as refused:
        load()

    assert f"(CHORDAGE_{name} or chordage.toml): {told}" in str(refused.value)


def test_invalid_secret_is_not_shown(monkeypatch):
    monkeypatch.setenv("CHORDAGE_WEBHOOK_SECRET", "whsec_half a secret")

    with pytest.raises(SettingsFault) as refused:
        load()

    assert "half a secret" not in str(refused.value)


def test_setting_within_another_that_there_is_not_is_named_with_its_variable(monkeypatch):
    monkeypatch.setenv("CHORDAGE_BOUNDS__CHATS__MAX_QUEUED", "1")

    with pytest.raises(SettingsFault, match="CHORDAGE_BOUNDS__CHATS or chordage.toml.: there is no such setting"):
        load()


def test_unknown_setting_of_the_file_is_reported_with_the_nearest_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chordage.toml").write_text("sweeep = 3\n")

    with pytest.raises(SettingsFault, match="sweeep .chordage.toml.: there is no such setting; did you mean sweep?"):
        load()


@pytest.mark.parametrize("given", ["a,b", " a , b,", '["a", "b"]'])
def test_names_are_separated_by_commas_or_a_json_list(monkeypatch, given):
    monkeypatch.setenv("CHORDAGE_INTAKE_QUEUES", given)

    assert load().intake_queues == ("a", "b")


def test_beat_that_is_too_slow_for_the_lease_is_refused():
    with pytest.raises(SettingsFault, match=r"beat \(20 s\) must be at most half of lease \(30 s\)"):
        load(beat=20)


@pytest.fixture
def secrets(monkeypatch, tmp_path):
    folder = tmp_path / "secrets"
    folder.mkdir()
    monkeypatch.setenv(SECRETS_DIR, str(folder))
    return folder


def test_files_of_secrets_are_settings(secrets):
    (secrets / "chordage_database_url").write_text("postgresql://me:pa55@h/x\n")
    (secrets / "CHORDAGE_METRICS_TOKEN").write_text("sixteen letters.")
    (secrets / "of_another_program").write_text("not read")

    settings = load()

    assert settings.database == "postgresql://me:pa55@h/x", "without the line end that editors add"
    assert settings.metrics_token is not None
    assert "pa55" not in str(settings)
    assert as_environment(settings)["CHORDAGE_DATABASE_URL"] == "postgresql://me:pa55@h/x"
    assert unknown_variables() == problems() == []


def test_variable_wins_over_file_of_secrets_and_that_over_the_toml_file(secrets, monkeypatch, tmp_path):
    (tmp_path / "chordage.toml").write_text('redis_url = "redis://toml/0"\nprefix = "toml"\nroom = "toml"\n')
    (secrets / "chordage_redis_url").write_text("redis://secret/0")
    (secrets / "chordage_prefix").write_text("secret")
    monkeypatch.setenv("CHORDAGE_REDIS_URL", "redis://variable/0")

    settings = load()

    assert (settings.redis, settings.prefix, str(settings.room)) == ("redis://variable/0", "secret:", "toml")


def test_secrets_are_found_as_kubernetes_mounts_them(secrets):
    version = secrets / "..2026_01_01"
    version.mkdir()
    (version / "chordage_redis_url").write_text("redis://h/0")
    (secrets / "..data").symlink_to(version.name)
    (secrets / "chordage_redis_url").symlink_to("..data/chordage_redis_url")

    assert load().redis == "redis://h/0"


def linked_outside(file):
    (file.parents[1] / "elsewhere").write_text("redis://h/0")
    file.symlink_to(file.parents[1] / "elsewhere")


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda file: file.write_text(" \n"), "is empty; write the secret into it"),
        (lambda file: file.write_bytes(b"\xff"), "is not UTF-8"),
        (lambda file: file.mkdir(), "is no file within that folder"),
        (linked_outside, "is no file within that folder"),
    ],
)
def test_file_of_secrets_that_cannot_be_used_is_reported_with_its_path(secrets, make, fault):
    make(secrets / "chordage_redis_url")

    with pytest.raises(SettingsFault, match=f"CHORDAGE_SECRETS_DIR: .*chordage_redis_url {fault}"):
        load()
    assert fault in problems()[0].text


def test_file_of_secrets_that_may_not_be_read_is_reported(secrets, monkeypatch):
    (secrets / "chordage_redis_url").write_text("redis://h/0")

    def refuse(self, **_):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(SettingsFault, match=r"CHORDAGE_SECRETS_DIR: .*Permission denied.*; let the account of this"):
        load()


def test_missing_folder_of_secrets_is_reported(secrets):
    secrets.rmdir()

    with pytest.raises(SettingsFault, match="CHORDAGE_SECRETS_DIR: .*secrets is no folder; mount the secrets there"):
        load()
    assert unknown_variables() == []


def test_invalid_secret_of_a_file_is_not_shown(secrets):
    (secrets / "chordage_redis_url").write_text("amqp://me:word@h")

    with pytest.raises(SettingsFault) as refused:
        load()

    assert "CHORDAGE_REDIS_URL" in str(refused.value)
    assert "word" not in str(refused.value)


def test_file_of_secrets_that_is_no_setting_is_named(secrets):
    (secrets / "chordage_databse_url").write_text("x")

    (fault,) = unknown_variables()

    assert (
        fault == "file of secrets chordage_databse_url: there is no such setting; did you mean CHORDAGE_DATABASE_URL?"
    )


def test_every_secret_is_left_out_of_faults():
    secret = {
        name for name, one in Settings.model_fields.items() if SecretStr in (one.annotation, *get_args(one.annotation))
    }

    assert len(secret) >= 5
    assert secret <= SECRETS


def rows_of_the_documentation():
    """Of the table of settings: by the first variable of a row, what it says of the default."""
    table = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text()
    return re.findall(r"^\| (`CHORDAGE_.+?) \| (.*?) \|", table, re.MULTILINE)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_documentation_names_every_setting(name):
    named = " ".join(variables for variables, _ in rows_of_the_documentation())

    assert re.search(rf"`{variable_of((name,))}(__|`)", named), "say in docs/reference/settings.md what it is for"


def test_documentation_has_the_default_numbers():
    usual = {variable_of((name,)): one.default for name, one in Settings.model_fields.items()}
    told = {variables.strip("`"): default for variables, default in rows_of_the_documentation()}
    numbers = {name: value for name, value in usual.items() if isinstance(value, int | float) and name in told}

    assert len(numbers) > 15
    assert {name: told[name] for name in numbers} == {name: f"{value:g}" if isinstance(value, float) else str(value)
                                                       for name, value in numbers.items()}  # fmt: skip
