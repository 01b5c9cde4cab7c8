"""Our own Valkey server: starts, says why it does not, survives what it must."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import urlsplit

import psutil
import pytest
import redis

from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.workers.fleet.member import free_port
from chordage.workers.fleet.valkey import ValkeyServer
from support.valkey import WatchedValkey

pytestmark = pytest.mark.redis


def connect(server, **options):
    return redis.Redis.from_url(server.url, decode_responses=True, **options)


def test_server_answers_with_the_settings_a_broker_needs(start_valkey):
    server = start_valkey()

    with connect(server) as client:
        settings = client.config_get("appendonly", "save", "maxmemory-policy", "bind")

    assert settings == {"appendonly": "yes", "save": "", "maxmemory-policy": "noeviction", "bind": "127.0.0.1"}
    assert server.pid == psutil.Process(server.pid).pid == os.getsid(server.pid)


def test_server_obeys_no_client_without_its_password(start_valkey):
    server = start_valkey()

    with redis.Redis("127.0.0.1", server.port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with (
        redis.Redis("127.0.0.1", server.port, password="chordage") as guessing,
        pytest.raises(redis.AuthenticationError),
    ):
        guessing.ping()


def test_password_survives_restarts_in_a_file_only_its_owner_can_read(start_valkey):
    server = start_valkey()
    before = server.url
    secret = (server.state_dir / "auth.conf").read_text().split()[1]
    server.stop()
    again = ValkeyServer(server.state_dir, port=server.port)

    with again:
        assert again.url == before
        assert secret in before
        assert secret not in " ".join(psutil.Process(again.pid).cmdline())
        assert {path.name for path in again.state_dir.rglob("*") if path.stat().st_mode & 0o077} == set()
        assert again.state_dir.stat().st_mode & 0o077 == 0


def test_servers_have_passwords_of_their_own_and_a_file_without_one_gets_one(start_valkey):
    first, second = start_valkey("first"), start_valkey("second")
    assert urlsplit(first.url).password != urlsplit(second.url).password
    first.stop()
    (first.state_dir / "auth.conf").write_text("requirepass short\n")

    first.start()

    assert ":short@" not in first.url
    with connect(first) as client:
        assert client.ping()


def test_what_was_written_survives_stop_and_start_on_the_same_port(start_valkey):
    server = start_valkey()
    port = server.port
    with connect(server) as client:
        client.set("key", "value")

    server.stop()
    assert not server.running
    assert server.pid is None
    server.start()

    with connect(server) as client:
        assert client.get("key") == "value"
    assert server.port == port


def test_without_append_only_file_nothing_survives_a_kill(start_valkey):
    server = start_valkey(appendonly=False)
    with connect(server) as client:
        client.set("key", "value")

    server.kill()
    server.start()

    with connect(server) as client:
        assert client.get("key") is None


def test_frozen_server_answers_no_client_and_then_continues(start_valkey):
    server = start_valkey()

    with connect(server, socket_timeout=0.2) as client, server.frozen(), pytest.raises(redis.TimeoutError):
        client.ping()

    with connect(server) as client:
        assert client.ping()


def test_pause_returns_when_the_server_runs_again(start_valkey):
    server = start_valkey()

    server.pause(0.01)

    assert psutil.Process(server.pid).status() != psutil.STATUS_STOPPED


def test_frozen_server_can_still_be_stopped(start_valkey):
    server = start_valkey()

    with server.frozen():
        server.stop()

    assert not server.running


def test_stop_of_a_server_that_does_not_obey_ends_in_a_kill(start_valkey):
    server = start_valkey()

    server.stop(timeout=0)

    assert not server.running


def test_taken_port_is_reported_with_the_log(start_valkey, tmp_path):
    first = start_valkey()

    with pytest.raises(Unavailable, match=rf"port {first.port}.*Address already in use.*valkey\.log"):
        ValkeyServer(tmp_path / "second", port=first.port).start()


def test_second_server_on_the_same_directory_is_refused(start_valkey):
    first = start_valkey()

    with pytest.raises(Unavailable, match=f"is in use by valkey, process {first.pid}: stop it: `kill {first.pid}`"):
        ValkeyServer(first.state_dir).start()


def test_directory_stays_locked_while_the_server_lives_though_its_starter_died(tmp_path):
    starter = (
        "import os, sys; from pathlib import Path; from chordage.workers.fleet.valkey import ValkeyServer\n"
        "server = ValkeyServer(Path(sys.argv[1])); server.start(); print(server.pid, flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", starter, tmp_path], capture_output=True, text=True, check=True)
    orphan = psutil.Process(int(done.stdout))

    with pytest.raises(Unavailable, match=f"process {orphan.pid}"):
        ValkeyServer(tmp_path).start()
    orphan.kill()
    psutil.wait_procs([orphan])

    with ValkeyServer(tmp_path) as server:
        assert server.running


def test_damaged_file_is_reported_with_what_to_do(start_valkey):
    server = start_valkey()
    server.stop()
    next((server.state_dir / "appendonlydir").glob("*.incr.aof")).write_bytes(b"damage\r\n" * 9)

    with pytest.raises(Unavailable, match=r"Bad file format.*can be sent again.*move .*appendonlydir away"):
        server.start()


def test_directory_that_cannot_be_made_is_a_configuration_error(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="file/state cannot hold the files of valkey: Not a directory"):
        ValkeyServer(tmp_path / "file" / "state").start()


def test_program_that_is_no_program_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no-such cannot be run: No such file.*pip install"):
        ValkeyServer(tmp_path, program=tmp_path / "no-such").start()


def test_program_that_never_answers_is_given_up_and_killed(tmp_path):
    silent = tmp_path / "valkey-server"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    server = ValkeyServer(tmp_path / "state", port=free_port(), program=silent)

    with pytest.raises(Unavailable, match="no answer in time; its log is empty"):
        server.start(timeout=0.1)

    assert not server.running


def test_another_port_is_tried_when_a_port_was_taken_meanwhile(tmp_path):
    quarrelsome = tmp_path / "valkey-server"
    quarrelsome.write_text("#!/bin/sh\necho '1:M 1 Jan # bind: Address already in use'\nexit 1\n")
    quarrelsome.chmod(0o755)
    server = ValkeyServer(tmp_path / "state", program=quarrelsome)

    with pytest.raises(Unavailable):
        server.start(tries=3)

    assert server.log.read_text().count("Address already in use") == 3


def test_port_and_freezing_need_a_started_server(tmp_path):
    server = WatchedValkey(tmp_path)

    with pytest.raises(Unavailable, match=r"call start\(\) first"):
        _ = server.url
    with pytest.raises(Unavailable, match=r"call start\(\) first"), server.frozen():
        pass


def test_starting_and_stopping_twice_changes_nothing(start_valkey):
    server = start_valkey()
    pid = server.pid

    server.start()
    assert server.pid == pid

    server.stop()
    server.stop()
    assert not server.running
