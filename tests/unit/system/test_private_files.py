"""Files that only their owner may use, from the moment they are made."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from chordage.orchestrator.store import database
from chordage.orchestrator.system import private_files


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(autouse=True)
def _generous_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_folders_are_made_private_and_those_above_them_too(tmp_path):
    made = private_files.folder(tmp_path / "a" / "b")

    assert [mode(path) for path in (made, made.parent)] == [0o700, 0o700]
    assert private_files.folder(made) == made


def test_a_folder_cannot_be_where_a_file_is(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(NotADirectoryError):
        private_files.folder(tmp_path / "file" / "below")


def test_written_file_is_private_and_replaces_a_public_one(tmp_path):
    path = tmp_path / "it"
    path.write_text("old")
    path.chmod(0o666)

    private_files.write(path, "new")

    assert (path.read_text(), mode(path), [one.name for one in tmp_path.iterdir()]) == ("new", 0o600, ["it"])


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "it").mkdir()

    with pytest.raises(IsADirectoryError):
        private_files.write(tmp_path / "it", "new")

    assert [one.name for one in tmp_path.iterdir()] == ["it"]


def test_tightening_names_what_it_changed_and_leaves_links_and_shared_folders(tmp_path):
    public, private, shared, link = (tmp_path / name for name in ("public", "private", "shared", "link"))
    public.touch(0o664)
    private.touch(0o600)
    shared.mkdir()
    shared.chmod(0o1777)
    link.symlink_to(shared)

    assert private_files.tighten([public, private, shared, link, tmp_path / "gone"]) == [public]
    assert [mode(path) for path in (public, private, shared)] == [0o600, 0o600, 0o1777]


def test_database_file_is_private_from_its_first_moment_and_an_open_one_is_closed(tmp_path):
    path = tmp_path / "execution.db"
    one = database.make_engines(f"sqlite:///{path}", pool_size=4, hold=15).whole
    with one.connect() as tx:
        tx.exec_driver_sql("CREATE TABLE t (x)")
        tx.commit()
        assert {each.name: mode(each) for each in tmp_path.iterdir()} == {
            "execution.db": 0o600, "execution.db-wal": 0o600, "execution.db-shm": 0o600
        }  # fmt: skip
    one.dispose()
    path.chmod(0o644)

    two = database.make_engines(f"sqlite:///{path}", pool_size=4, hold=15).whole
    with two.connect() as tx:
        assert mode(path) == 0o600
        tx.rollback()
    two.dispose()


def test_missing_folder_of_a_database_is_reported_by_sqlite(tmp_path):
    one = database.make_engines(f"sqlite:///{tmp_path / 'nowhere' / 'execution.db'}", pool_size=4, hold=15).whole

    with pytest.raises(Exception, match="unable to open database file"):
        one.connect()


def test_further_connections_of_a_process_leave_the_locks_of_its_first_alone(tmp_path):
    """Where a process closes a file, it loses all the locks it has on that file, whichever code took them."""
    path = tmp_path / "execution.db"
    one = database.make_engines(f"sqlite:///{path}", pool_size=4, hold=15).whole
    with one.connect() as tx:
        tx.exec_driver_sql("CREATE TABLE t (x)")
        tx.commit()
    beside = database.make_engines(f"sqlite:///{path}", pool_size=4, hold=15).whole
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None); "
        "c.execute('PRAGMA locking_mode=EXCLUSIVE'); c.execute('INSERT INTO t VALUES (1)')"
    )
    with one.connect() as tx:
        tx.exec_driver_sql("SELECT * FROM t")
        with beside.connect() as other:
            other.rollback()
        done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
        assert "database is locked" in done.stderr
        tx.rollback()
    one.dispose()
    beside.dispose()
