"""The servers that tests run on: clean for every test, able to crash, gone afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from support import processes
from support.waiting import PATIENCE, until

ABANDONING = """
import os, sys
sys.path.append(sys.argv[1])
from pathlib import Path
from support import processes
from support.waiting import until
folder = processes.scratch_folder("guard")
process = processes.spawn(["sleep", "600"], folder / "log")
print(process.pid, folder, flush=True)
os.kill(os.getpid(), 9)
"""


def execute(url, statement):
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else None


def is_gone(pid):
    """A zombie counts: a container may have no process that reaps orphans."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.postgres
def test_committed_rows_survive_a_crash_of_the_server(start_postgres):
    server = start_postgres(fsync=True)
    url = server.create_database()
    execute(url, "CREATE TABLE t AS SELECT 1 AS n")

    server.restart("immediate")

    assert execute(url, "SELECT n FROM t") == [(1,)]
    assert execute(url, "SHOW fsync") == [("on",)]


@pytest.mark.postgres
def test_stopped_server_refuses_and_comes_back_on_the_same_port(start_postgres):
    server = start_postgres()
    url = server.create_database()

    server.stop("fast")
    with pytest.raises(psycopg.OperationalError):
        execute(url, "SELECT 1")
    server.start()

    assert execute(url, "SELECT 1") == [(1,)]


@pytest.mark.postgres
def test_database_is_copied_and_the_copy_is_independent(postgres_server):
    template = postgres_server.create_database()
    execute(template, "CREATE TABLE t AS SELECT 1 AS n")
    postgres_server.close_to_clients(template)

    copy = postgres_server.create_database(template)
    execute(copy, "DELETE FROM t")
    second = postgres_server.create_database(template)

    assert execute(second, "SELECT n FROM t") == [(1,)]
    for url in (copy, second, template):
        postgres_server.drop_database(url)


@pytest.mark.redis
def test_every_test_gets_an_empty_redis_database(redis_url, redis_databases):
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "over")

    assert next(redis_databases) != redis_url


def test_processes_and_folders_of_a_killed_test_run_are_removed(tmp_path):
    support = Path(processes.__file__).parents[1]
    dead = subprocess.run(
        [sys.executable, "-c", ABANDONING, support], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    pid, folder = dead.stdout.split()

    assert dead.returncode == -signal.SIGKILL
    until(lambda: is_gone(int(pid)) and not Path(folder).exists(), "the guard cleans up")


WARM = """
import json, os, sys
print(json.dumps([sys.argv, os.environ["MARK"], os.getcwd(), os.getpid() == os.getsid(0), "celery" in sys.modules]))
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else os.kill(os.getpid(), 9))
"""


@pytest.mark.parametrize(("arguments", "code"), [(["3"], 3), (["0"], 0), ([], -9)])
def test_program_that_starts_warm_is_a_process_of_its_own(tmp_path, arguments, code):
    (tmp_path / "program.py").write_text(WARM)
    argv = [str(tmp_path / "program.py"), *arguments]

    process = processes.spawn_warm(argv, tmp_path / "log", env={"MARK": "here"}, cwd=tmp_path)

    assert process.wait(PATIENCE) == code
    if code >= 0:
        assert json.loads((tmp_path / "log").read_text()) == [argv, "here", str(tmp_path), True, True]
    assert is_gone(process.pid)


def test_stop_kills_the_whole_tree_of_a_process_that_does_not_listen(tmp_path):
    ready = tmp_path / "ready"
    script = f"trap '' TERM; sleep 600 & echo $! > {ready}.new; mv {ready}.new {ready}; wait; sleep 600"
    process = processes.spawn(["bash", "-c", script], tmp_path / "log")
    while not ready.exists():
        assert process.poll() is None

    code = processes.stop(process, patience=0.1)

    assert code == -signal.SIGKILL
    until(lambda: is_gone(int(ready.read_text())), "the child ends")
