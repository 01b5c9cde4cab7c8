"""The counting itself is counted: on databases and commands of which we know what was done."""

from __future__ import annotations

import sqlite3

import pytest

from chordage.benchmarks.counting import CHATTER, messages_in, sql_counter
from chordage.orchestrator.core.errors import Unavailable


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "counted.db"
    db = connection(path)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("CREATE TABLE words (word TEXT)")
    db.close()
    return path


def connection(path):
    return sqlite3.connect(path, isolation_level=None)


def test_each_commit_that_writes_is_counted_once_however_much_it_writes(file):
    db = connection(file)
    with sql_counter(f"sqlite:///{file}") as counter:
        db.execute("INSERT INTO words VALUES ('one')")
        db.execute("BEGIN")
        db.executemany("INSERT INTO words VALUES (?)", [("x" * 3000,)] * 50)
        db.execute("COMMIT")

        assert counter.count().commits == 2
    db.close()


def test_reads_and_rollbacks_and_writes_that_find_nothing_are_no_commits(file):
    db = connection(file)
    with sql_counter(f"sqlite:///{file}") as counter:
        db.execute("SELECT * FROM words").fetchall()
        db.execute("UPDATE words SET word = 'never' WHERE word = 'absent'")
        db.execute("BEGIN")
        db.execute("INSERT INTO words VALUES ('gone')")
        db.execute("ROLLBACK")

        found = counter.count()
    db.close()
    assert (found.commits, found.bytes) == (0, 0)


def test_log_is_counted_across_what_would_have_been_its_checkpoint(file):
    db = connection(file)
    with sql_counter(f"sqlite:///{file}") as counter:
        for _ in range(1200):  # SQLite folds the log in at 1,000 pages, were it not read
            db.execute("INSERT INTO words VALUES ('one')")

        found = counter.count()
    db.close()
    assert found.commits == 1200
    assert found.bytes >= 1200 * 4096


def test_counting_needs_an_idle_database(file):
    reader = connection(file)
    reader.execute("INSERT INTO words VALUES ('in the log')")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM words").fetchall()

    with pytest.raises(Unavailable, match="a moment without open transactions"), sql_counter(f"sqlite:///{file}"):
        pass
    reader.close()


@pytest.mark.postgres
def test_postgres_counts_commits_that_write_and_nothing_else(postgres_server):
    url = postgres_server.create_database()
    with sql_counter(url) as counter, postgres_server.connect() as other:
        other.execute("SELECT 1")
        before = counter.count().commits
        other.execute("CREATE TABLE words_of_bench (word text)")
        other.execute("INSERT INTO words_of_bench VALUES ('one'), ('two')")
        other.execute("SELECT * FROM words_of_bench")
        other.execute("DROP TABLE words_of_bench")

        assert (before, counter.count().commits) == (0, 3)


@pytest.mark.parametrize(
    "command",
    [
        "BRPOP chat chat.tools 1",
        "PING",
        "SET chordage:sweep:17 1 NX PX 15000",
        "LLEN chat",
        "ZRANGE chordage:celery:unacked_index 1794996311.12 0 BYSCORE REV WITHSCORES",
        "PUBLISH /3.celeryev/worker.heartbeat {}",
        "ZRANGE chordage:watched 0 -1 WITHSCORES",
    ],
)
def test_log_of_an_idle_fleet_is_not_counted(command):
    assert CHATTER.search(command)


@pytest.mark.parametrize(
    "command",
    [
        "LPUSH chat {}",
        "ZADD unacked_index 1.5 tag",
        "PUBLISH chordage:done:t 1",
        "SET chordage:thread:t r:1 NX PX 60000",
    ],
)
def test_log_of_a_turn_is_counted(command):
    assert not CHATTER.search(command)


def test_push_of_several_messages_counts_as_many():
    message = '{"body": "e30=", "properties": {"delivery_tag": "t"}}'
    counted = [messages_in(command) for command in ("LPUSH chat x", f"LPUSH chat {message} {message}", "LRANGE chat")]
    assert counted == [1, 2, 0]
