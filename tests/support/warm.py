"""Python programs that start warm: a process that has imported the product forks each of them.

What a worker does until it is ready is to import, nearly all of it: a second and a half of a core. Each program is a
process of its own all the same, with its own arguments, variables, folder, session and log. What must be seen from
nothing is started by `processes.spawn`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

IMPORTED = ("chordage.workers.cli.processes", "chordage.workers.app", "chordage.workers.worker", "psycopg", "hiredis")
LONG = 2**20  # bytes of a request: arguments and variables
NUMBER = struct.Struct("i")


class WarmProcess:
    """Like a Popen. `told` brings the number of the process, and its exit code when it has ended."""

    def __init__(self, args: Sequence[str], told: int) -> None:
        self.args, self._told = args, told
        self.returncode: int | None = None
        self.pid = self._number()

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = self._number()
            os.close(self._told)
        return self.returncode

    def _number(self) -> int:
        said = os.read(self._told, NUMBER.size)
        assert said, f"the process that forks {self.args} has ended"
        return int(NUMBER.unpack(said)[0])


class Nursery:
    """The process that forks."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._line, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONG)
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "support.warm", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        theirs.close()

    def start(self, argv: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path) -> WarmProcess:
        told, tells = os.pipe()
        with log.open("ab") as out:
            request = json.dumps([list(argv), dict(env), str(cwd)]).encode()
            socket.send_fds(self._line, [request], [out.fileno(), tells])
        os.close(tells)
        return WarmProcess(argv, told)

    def close(self) -> None:
        self._line.close()
        self.process.wait()


@functools.cache
def nursery() -> Nursery:
    """The one of this process; the first call starts it."""
    one = Nursery()
    atexit.register(one.close)
    return one


def _serve(line: socket.socket) -> tuple[Sequence[str], Mapping[str, str]] | None:
    """Returns in each child, with what it is to run, and in the end without."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}  # by the number of the process: the pipe for its exit code
    while True:
        ready = select.select([line, woken], [], [])[0]
        if woken in ready:
            os.read(woken, LONG)
            _tell_ends(children)
        if line in ready:
            request, (out, tells), _, _ = socket.recv_fds(line, LONG, 2) if _is_open(line) else (b"", (0, 0), 0, 0)
            if not request:
                return None
            argv, env, cwd = json.loads(request)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _become(out, cwd, close=(line.detach(), woken, wakes, tells, *children.values()))
                return argv, env
            os.close(out)
            children[pid] = tells
            os.write(tells, NUMBER.pack(pid))


def _is_open(line: socket.socket) -> bool:
    return bool(line.recv(1, socket.MSG_PEEK))


def _tell_ends(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        tells = children.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(tells, NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(tells)


def _become(out: int, cwd: str, *, close: Sequence[int]) -> None:
    """What Popen does between fork and exec."""
    for number in close:
        os.close(number)
    os.setsid()
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.chdir(cwd)


def _run(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """`python ARGV` with these variables. Its own folder comes first on the path, as with Python, then PYTHONPATH."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    of_variable = env.get("PYTHONPATH", "").split(os.pathsep)
    match argv:
        case ["-m", module, *rest]:
            sys.argv[:] = [module, *rest]
            sys.path[:0] = [str(Path.cwd()), *of_variable]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", program, *rest]:
            sys.argv[:] = ["-c", *rest]
            sys.path[:0] = ["", *of_variable]
            exec(program, {"__name__": "__main__"})
        case [file, *_]:
            sys.argv[:] = argv
            sys.path[:0] = [str(Path(file).parent), *of_variable]
            runpy.run_path(file, run_name="__main__")


def main() -> None:
    os.environ["REMAP_SIGTERM"] = "SIGQUIT"  # as in a worker (workers/worker.py): read when billiard is imported
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):  # hiredis is an extra
            importlib.import_module(name)
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        _run(*asked)


if __name__ == "__main__":
    main()
