"""`keys`: a key is made and shown once, listed and revoked; a link leads into the console."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core import keys as rules
from chordage.orchestrator.store.database import Store
from chordage.workers.cli.keys import COLUMNS

MAKE = ("keys", "create", "shop", "--scope", "submit")


@pytest.fixture
def database(chordage, room):
    chordage("migrate")
    store = Store(f"sqlite:///{room / 'execution.db'}")
    yield store
    store.close()


def listed(chordage):
    return json.loads(chordage("keys", "list", "--json").stdout)


def test_the_key_is_alone_on_standard_output(chordage, database):
    done = chordage(*MAKE)

    parts = rules.parse(done.stdout.removesuffix("\n"))
    assert done.exit_code == 0
    assert stages.find_key(database, parts.id).fits(parts.secret)
    assert parts.id in done.stderr
    assert parts.secret not in done.stderr


def test_a_key_is_made_for_a_program_too(chordage, database):
    made = json.loads(chordage(*MAKE, "--json").stdout)

    assert stages.find_key(database, made["id"]).fits(rules.parse(made["secret"]).secret)


def test_a_key_has_what_was_given(chordage, database):
    more = ("--scope", "read", "--tenant", "acme", "--agent", "ada", "--agent", "bob", "--group", "task")
    chordage(*MAKE, *more, "--expires", "90d")

    (key,) = listed(chordage)

    assert (key["name"], key["tenant"], key["state"], key["created_by"]) == ("shop", "acme", "valid", "cli")
    assert (key["scopes"], key["agents"], key["groups"]) == (["submit", "read"], ["ada", "bob"], ["task"])
    left = datetime.fromisoformat(key["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)


@pytest.mark.usefixtures("database")
def test_keys_are_listed_without_what_is_secret(chordage):
    made = chordage(*MAKE).stdout

    (line,) = [line.split("\t") for line in chordage("keys", "list").stdout.splitlines()]

    assert len(line) == len(COLUMNS)
    assert line[:5] == [rules.parse(made.strip()).id, "shop", "valid", "-", "submit"]
    assert "hash" not in listed(chordage)[0]


@pytest.mark.usefixtures("database")
def test_a_revoked_key_stays_on_the_list(chordage):
    key_id = rules.parse(chordage(*MAKE).stdout.strip()).id

    told = chordage("keys", "revoke", key_id)
    again = chordage("keys", "revoke", key_id)

    assert told.stdout == again.stdout == f"key {key_id} (shop) is revoked; servers refuse it within 5 s\n"
    assert listed(chordage)[0]["state"] == "revoked"
    assert chordage("keys", "revoke", "nowhere").exit_code == 1


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--expires", "soon"), 2, "90d, 12h or 30m"),
        (("--expires", "0d"), 2, "90d, 12h or 30m"),
        (("--scope", "all"), 2, "'all'"),
        (("--group", "x"), 2, "'x'"),
        (("--agent", "adda"), 1, "did you mean ada?"),
        (("--tenant", "a:b"), 2, "is no tenant"),
    ],
)
def test_what_makes_no_key_says_what_to_give(chordage, options, code, text):
    done = chordage(*MAKE, *options)

    assert (done.exit_code, done.stdout) == (code, "")
    assert text in done.stderr
    assert listed(chordage) == []


@pytest.mark.usefixtures("database")
def test_a_key_needs_a_scope(chordage):
    assert chordage("keys", "create", "shop").exit_code == 2


def test_without_a_database_the_error_says_how_to_make_one(chordage):
    done = chordage(*MAKE)

    assert done.exit_code == 1
    assert "chordage migrate" in done.stderr


def test_a_link_is_printed_for_one_use(chordage, database):
    url = chordage("keys", "link", port="9000").stdout.strip()

    start, _, token = url.partition("?link=")
    assert start == "http://127.0.0.1:9000/console/login"
    assert [stages.use_link(database, token, datetime.now(UTC)) for _ in range(2)] == [True, False]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("command", [("web",), ("run",), ("dev",), ("start",)])
def test_a_server_for_other_machines_does_not_start_without_a_key(chordage, command):
    done = chordage(*command, "--host", "0.0.0.0", "--port", "0", redis_url="redis://127.0.0.1:1/0")

    assert done.exit_code == 1
    if command != ("web",):  # that looks at Redis first
        assert "there is no valid key: make one with `chordage keys create NAME" in done.stderr


@pytest.mark.parametrize("command", [("run",), ("dev",), ("start",)])
def test_before_there_is_a_database_the_error_says_both_steps(chordage, command):
    done = chordage(*command, "--host", "0.0.0.0", "--port", "0")

    assert done.exit_code == 1
    assert "make the database with `chordage migrate`, then make one with `chordage keys create" in done.stderr
