"""Everything that can be wrong is reported in one line, with an exit code, and nothing is left behind."""

from __future__ import annotations

import json
import sqlite3

import pytest

DEAD = "redis://127.0.0.1:1/0"

RULES = {
    "blank text": ((" ",), "text is blank"),
    "chat without channel": (("x", "--origin", "chat"), "origin 'chat' needs a channel"),
    "chat with blank channel": (("x", "--origin", "chat", "--channel", " "), "origin 'chat' needs a channel"),
    "invoke with channel": (("x", "--channel", "api"), "origin 'invoke' takes no channel"),
    "task with channel": (("x", "--origin", "task", "--channel", "api"), "origin 'task' takes no channel"),
    "empty thread id": (("x", "--thread", ""), "thread_id must have 1 to 200 characters, not 0"),
    "long thread id": (("x", "--thread", "t" * 201), "thread_id must have 1 to 200 characters, not 201"),
    "control character": (("x", "--thread", "a\nb"), "thread_id must be visible characters"),
    "blank thread id": (("x", "--thread", "  "), "thread_id must be visible characters"),
    "half a surrogate": (("\udcff",), "text holds half of a surrogate pair"),
    "meta is no JSON": (("x", "--meta", "{"), "--meta is not JSON"),
    "meta is no object": (("x", "--meta", "[1]"), "--meta must be a JSON object"),
    "meta holds NaN": (("x", "--meta", '{"a": NaN}'), "--meta is not JSON: NaN"),
    "group above": (
        ("x", "--origin", "chore", "--thread", "chore:x", "--group", "chat"),
        "group 'chat' ranks above 'chore'",
    ),
    "empty dedupe key": (("x", "--dedupe-key", ""), "dedupe_key must have 1 to 200 characters"),
    "deadline without zone": (("x", "--deadline", "2030-01-01T00:00:00"), "deadline: Input should have timezone info"),
    "deadline is over": (("x", "--deadline", "2001-01-01T00:00:00Z"), "deadline lies in the past"),
    "no time": (("x", "--not-before", "soon"), "give a date and a time with a zone, such as 2026-01-31T12:00:00Z"),
    "starts too late": (
        ("x", "--not-before", "2090-01-01T00:00:00Z", "--deadline", "2089-01-01T00:00:00Z"),
        "not_before is not before deadline",
    ),
    "long text": (("x" * 300_000,), "text has 300000 bytes, the limit is 262144"),
    "large meta": (("x", "--meta", json.dumps({"a": "b" * 70_000})), "the limit is 65536"),
}


@pytest.mark.parametrize(("arguments", "told"), RULES.values(), ids=RULES)
def test_broken_rule_is_reported_before_any_service_is_contacted(chordage, room, arguments, told):
    done = chordage("submit", *arguments, redis_url=DEAD)

    assert done.exit_code == 2
    assert done.stderr.startswith("chordage: ")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (room / "execution.db").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("x", "--origin", "letter"), "'letter' is not one of 'invoke', 'chat', 'task', 'chore', 'will'"),
        (("x", "--group", "vip"), "'vip' is not one of"),
        (("x", "--when-busy", "drop"), "'drop' is not one of 'enqueue', 'reject', 'interrupt', 'rollback', 'steer'"),
        (("x", "--timeout", "3"), "--timeout limits the time of --wait"),
        (("x", "--sender", "owner"), "No such option"),
        ((), "Missing argument 'TEXT'"),
    ],
)
def test_a_wrong_option_is_a_usage_error(chordage, arguments, told):
    done = chordage("submit", *arguments)

    assert done.exit_code == 2
    assert told in done.stderr


@pytest.mark.parametrize("command", ["submit", "invoke"])
def test_an_unknown_agent_lists_the_known_ones(chordage, room, command):
    done = chordage(command, "x", "--agent", "eve", redis_url=DEAD)

    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no agent 'eve'; there are: ada, bob" in done.stderr
    assert not (room / "execution.db").exists()


@pytest.mark.parametrize("command", ["submit", "invoke"])
def test_a_broken_agent_file_is_named_with_line_and_key(chordage, room, command):
    (room / "agent.toml").write_text('name = "ada"\nmodel = 5\n')

    done = chordage(command, "x", redis_url=DEAD)

    assert done.exit_code == 1
    assert "agent.toml:2: model" in done.stderr


def test_tool_that_cannot_be_imported_is_reported_before_a_turn_is_made(chordage, room):
    (room / "agent.toml").write_text('model = "scripted:script.yaml"\ntools = ["nowhere:tool"]\n')

    done = chordage("invoke", "x")

    assert done.exit_code == 1
    assert "agent.toml:2: tools: 'nowhere:tool'" in done.stderr
    assert not (room / "execution.db").exists()


def test_missing_key_is_reported_before_a_turn_is_made(chordage, room, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (room / "agent.toml").write_text('model = "openai:gpt-4o"\n')

    done = chordage("invoke", "x")

    assert done.exit_code == 1
    assert "OPENAI_API_KEY" in done.stderr
    assert not (room / "execution.db").exists()


def test_an_unknown_strategy_names_the_known_ones(chordage):
    done = chordage("invoke", "x", "--strategy", "think")

    assert done.exit_code == 2
    assert "strategy 'think' is not known; use one of: direct" in done.stderr


def test_a_folder_that_is_not_there_is_named(chordage, tmp_path):
    done = chordage("invoke", "x", room=str(tmp_path / "gone"))

    assert done.exit_code == 1
    assert "gone: there is no such folder" in done.stderr


def test_a_wrong_setting_is_named(chordage):
    done = chordage("turns", lease="soon")

    assert done.exit_code == 2
    assert "CHORDAGE_LEASE" in done.stderr


READERS = [
    ("turns",), ("threads",), ("show", "x"), ("inbox",), ("approve", "x"), ("deny", "x"), ("cancel", "x"),
    ("retry", "x"), ("steer", "x", "y"),
    ("compact", "x"), ("migrate", "--check"), ("submit", "x"), ("pulse",), ("pulse", "run", "x"), ("channels",),
    ("deliveries",), ("deliveries", "retry", "1"), ("bus", "status"), ("bus", "rebuild"), ("groups",), ("trace", "x"),
    ("tail", "x"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", READERS)
def test_a_question_to_a_database_that_is_not_there_makes_none(chordage, room, arguments):
    done = chordage(*arguments, redis_url=DEAD)

    assert done.exit_code == 1
    assert "execution.db: nothing was started here yet. `chordage start` (or `chordage dev`) starts a" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (room / "execution.db").exists()


@pytest.mark.parametrize("arguments", [("submit", "x"), ("bus", "rebuild")])
def test_before_the_first_start_what_needs_redis_names_what_to_start(chordage, room, arguments):
    done = chordage(*arguments)

    assert done.exit_code == 1
    assert "start a fleet, which brings its own: `chordage start` or `chordage dev`" in done.stderr
    assert not (room / "execution.db").exists()


@pytest.mark.parametrize("arguments", [*READERS, ("invoke", "x")])
def test_an_unreachable_database_is_one_line(chordage, arguments):
    pytest.importorskip("psycopg", reason="platform: no driver for PostgreSQL")

    done = chordage(*arguments, database_url="postgresql://me:secret@127.0.0.1:1/db", redis_url=DEAD)

    assert done.exit_code == 1
    assert done.stderr.startswith(
        "chordage: the database at postgresql+psycopg://me:***@127.0.0.1:1/db does not answer"
    )
    assert len(done.stderr.splitlines()) == 1


OF_NO_USE = {
    "oracle://x/y": "'oracle' is not supported: give CHORDAGE_DATABASE_URL as sqlite:///PATH or postgresql://",
    "mysql://me:secret@h/x": "'mysql' is not supported",
    "postgresql+psycopg2://me:secret@h/x": "'postgresql+psycopg2' is not supported",
    "sqlite+aiosqlite:///x": "'sqlite+aiosqlite' is not supported",
    "nonsense": "URL 'nonsense' cannot be read: give CHORDAGE_DATABASE_URL as sqlite:///PATH or postgresql://",
    "postgresql://me:secret@h:port/x": "URL 'postgresql://me:***@h:port/x' cannot be read",
}


@pytest.mark.parametrize("arguments", [("turns",), ("migrate",), ("invoke", "x")])
@pytest.mark.parametrize("url", OF_NO_USE)
def test_a_database_that_is_none_is_one_line(chordage, url, arguments):
    done = chordage(*arguments, database_url=url)

    assert done.exit_code == 1
    assert done.stderr.startswith(f"chordage: database {OF_NO_USE[url]}")
    assert len(done.stderr.splitlines()) == 1
    assert "secret" not in done.stderr


@pytest.mark.parametrize("content", ["nothing that SQLite has written", None])
def test_a_file_that_cannot_be_used_is_one_line(chordage, room, content):
    """A folder in the place of the file, where there is no content."""
    file = room / "execution.db"
    if content is None:
        file.mkdir()
    else:
        file.write_text(content * 100)

    for arguments in (("migrate",), ("turns",), ("invoke", "x")):
        done = chordage(*arguments)

        assert done.exit_code == 1
        assert done.stderr.startswith(f"chordage: the database at sqlite:///{file} cannot be used: ")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("submit", "x"), ("cancel", "x")])
def test_an_unreachable_redis_is_one_line_and_nothing_is_stored(chordage, arguments):
    chordage("migrate")

    done = chordage(*arguments, redis_url=DEAD)

    assert done.exit_code == 1
    assert "Redis at redis://127.0.0.1:1/0 does not answer" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(chordage("turns", "--json").stdout) == []


def test_without_any_redis_submit_explains_how_to_get_one(chordage):
    chordage("migrate")

    done = chordage("submit", "x")

    assert done.exit_code == 1
    assert "no Redis is set: give CHORDAGE_REDIS_URL" in done.stderr
    assert "`chordage dev`" in done.stderr


def set_version(room, version):
    with sqlite3.connect(room / "execution.db") as connection:
        connection.execute("UPDATE chordage_version SET version_num = :it, oldest = :it", {"it": version})
    connection.close()


@pytest.mark.parametrize("arguments", [*READERS, ("invoke", "x"), ("migrate",), ("migrate", "--check")])
def test_database_of_another_version_has_its_own_error(chordage, room, arguments):
    chordage("migrate")
    set_version(room, "9999")

    done = chordage(*arguments, redis_url=DEAD)

    assert done.exit_code == 1
    assert "the database is at schema 9999" in done.stderr
    assert "update chordage" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [*READERS, ("invoke", "x"), ("migrate",), ("migrate", "--check")])
def test_database_of_an_earlier_pre_release_is_reported_in_one_line(chordage, room, arguments):
    chordage("migrate")
    with sqlite3.connect(room / "execution.db") as connection:
        connection.execute("UPDATE chordage_version SET checksum = 'of before'")
    connection.close()

    done = chordage(*arguments, redis_url=DEAD)

    assert done.exit_code == 1
    assert "made by an earlier pre-release of chordage: it is at schema 0001" in done.stderr
    assert "Nothing was changed; give an empty database in CHORDAGE_DATABASE_URL" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", READERS)
def test_error_of_an_empty_database_names_migrate(chordage, room, arguments):
    (room / "execution.db").touch()

    done = chordage(*arguments, redis_url=DEAD)

    assert done.exit_code == 1
    assert "the database is empty: run `chordage migrate`" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show", "nope"), "there is no turn, run or thread 'nope'; `chordage turns` and `chordage threads` list"),
        (("cancel", "nope"), "there is no turn 'nope'; `chordage turns` lists them"),
        (("compact", "nope"), "there is no thread 'nope'; `chordage threads` lists them"),
    ],
)
def test_error_of_an_unknown_id_names_where_to_look(chordage, arguments, told):
    chordage("migrate")

    done = chordage(*arguments)

    assert done.exit_code == 1
    assert told in done.stderr


def test_standard_input_that_is_no_utf8_is_refused(chordage):
    done = chordage("invoke", "-", stdin=b"abc\xff")

    assert done.exit_code == 2
    assert "text on standard input is not UTF-8 at byte 3" in done.stderr
