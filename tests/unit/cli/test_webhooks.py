"""`chordage hooks`: what is bound, what came of it, and a delivery to try one with."""

from __future__ import annotations

import json

import pytest

from chordage.config.settings import load
from chordage.workers import web
from support import signed_deliveries
from support.web_server import served

BROKEN = '[hooks.lost]\npath = "/hooks/lost"\nsignature = "github"\nsecret_env = "NOT_SET"\n'


@pytest.fixture
def hooks(room, monkeypatch):
    signed_deliveries.write(room)
    signed_deliveries.environment(monkeypatch)
    return room


def test_hooks_are_listed_without_redis_and_without_counts(chordage, hooks):
    done = chordage("hooks")

    assert (done.exit_code, done.stderr) == (0, "")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert rows[0] == ["standard", "POST", "/hooks/standard", "standard", "-", "-", "-", "-", "-"]
    assert rows[4][:5] == ["open", "PUT", "/hooks/open", "none", "bob"]


def test_fault_is_reported_with_its_place_and_the_exit_code_is_one(chordage, hooks):
    signed_deliveries.write(hooks, BROKEN + signed_deliveries.FILE)

    done = chordage("hooks")

    assert done.exit_code == 1
    assert "lost\t-\t/hooks/lost\tbroken\t-" in done.stdout
    assert "hooks.toml:4: hooks.lost.secret_env: the environment variable NOT_SET is not set" in done.stderr


def test_json_has_hooks_and_faults(chordage, hooks):
    signed_deliveries.write(hooks, BROKEN + signed_deliveries.FILE)

    told = json.loads(chordage("hooks", "--json").stdout)

    assert told["hooks"][0]["name"] == "standard"
    assert told["hooks"][0]["counts"] is None
    assert "NOT_SET" in told["faults"][0]
    assert signed_deliveries.SECRET not in json.dumps(told)


def test_a_room_without_hooks_has_none_to_list(chordage):
    assert chordage("hooks").exit_code == 0


def test_without_redis_it_names_where_the_counts_are(chordage, hooks):
    done = chordage("hooks", redis_url="redis://127.0.0.1:9/0")

    assert (done.exit_code, done.stdout.count("\n")) == (0, 5)
    assert "the counts are in Redis, which does not answer" in done.stderr


@pytest.fixture
def server(hooks, migrated_database_url, redis_url):
    """Where it is, as settings for commands."""
    url = migrated_database_url("sqlite")
    with served(web.wired(load(room=hooks, database_url=url, redis_url=redis_url))) as client:
        yield {"port": str(client.base_url.port), "redis_url": redis_url}


@pytest.mark.redis
@pytest.mark.parametrize("name", ["standard", "github", "plain", "bare", "open"])
def test_a_delivery_is_signed_and_taken_in_every_form(chordage, server, name):
    done = chordage("hooks", "send", name, "--text", "hello", **server)

    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("202 turn ")


@pytest.mark.redis
def test_refusal_is_printed_with_its_reason(chordage, server):
    first = json.loads(chordage("hooks", "send", "github", "--text", "x", "--id", "1", "--json", **server).stdout)

    again = chordage("hooks", "send", "github", "--text", "x", "--id", "1", **server)
    blank = chordage("hooks", "send", "bare", "--text", " ", **server)

    assert (again.exit_code, again.stdout) == (
        1, f"409 this delivery was taken before: it is turn {first['turn_id']}\n",
    )  # fmt: skip
    assert (blank.exit_code, blank.stdout) == (1, "422 text must be a text that is not blank\n")


@pytest.mark.redis
def test_custom_body_and_thread_are_sent(chordage, server):
    body = b'{"text": "from a file"}'

    assert chordage("hooks", "send", "bare", "--body", "-", stdin=body, **server).stdout.startswith("202")
    assert chordage("hooks", "send", "github", "--text", "x", "--thread", "t", **server).stdout.startswith("202")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("nope", "--text", "x"), 1, "there is no hook 'nope' in"),
        (("lost", "--text", "x"), 1, "variable NOT_SET is not set"),
        (("bare", "--text", "x", "--url", "http://127.0.0.1:9"), 1, "start it with `chordage dev`"),
        (("bare",), 2, "give --text or --body"),
        (("bare", "--text", "x", "--id", "ä"), 2, "visible ASCII"),
    ],
)
def test_send_failure_is_reported(chordage, hooks, arguments, code, told):
    signed_deliveries.write(hooks, BROKEN + signed_deliveries.FILE)

    done = chordage("hooks", "send", *arguments)

    assert done.exit_code == code
    assert told in done.stderr


def test_nothing_is_sent_while_the_file_is_not_toml(chordage, hooks):
    signed_deliveries.write(hooks, "[hooks")

    assert "hooks.toml:1: this is not TOML" in chordage("hooks", "send", "bare", "--text", "x").stderr
