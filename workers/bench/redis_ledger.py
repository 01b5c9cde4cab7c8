"""What a contender asks of Redis, command by command, as MONITOR shows it: exact, and the same on every machine.

Counted are the commands of the contender's own database, clients included. Not counted is what a fleet says also when
it has nothing to do: pings, questions whether a queue has grown, the timers of kombu and of rescue. A blocking pop may
end with nothing, so of these one is counted for each message. What a Lua script does inside Redis is no command.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from typing import Any, Self

from redis import Redis

QUIET_FOR = 0.4  # seconds without a command: what follows a turn has been said
PATIENCE = 20.0
END = "end-of-the-bench"
CHATTER = re.compile(
    r"^(BRPOP|PING|HELLO|CLIENT|SELECT|INFO|LLEN|HLEN|SMEMBERS|SADD|ECHO|COMMAND|SCRIPT|ZREVRANGEBYSCORE)\b"
    r"|^ZRANGE unacked_index|_kombu\.|celeryev|pidbox|:sweep:|unacked_mutex",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisCount:
    messages: int = 0
    commands: int = 0
    bytes: int = 0


class RedisLedger:
    """Counts from `with` on, until it is asked."""

    def __init__(self, url: str, number: int) -> None:
        self._redis = Redis.from_url(f"{url}/{number}", max_connections=10)
        self._number = number
        self._seen: list[str] = []
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._listen, name="bench-monitor", daemon=True)
        self._listening = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._redis.echo(END)
        self._thread.join(PATIENCE)
        self._redis.close()

    def _listen(self) -> None:
        with self._redis.monitor() as monitor:  # type: ignore[no-untyped-call]
            self._listening.set()
            while True:
                said = monitor.next_command()
                if END in said["command"]:
                    return
                if said["db"] == self._number and said["client_type"] != "lua":
                    self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        command = str(said["command"])
        if not CHATTER.search(command):
            self._seen.append(command)
            self._last = time.monotonic()

    def start_over(self) -> None:
        """What follows from what was done before is not counted."""
        self.settled()
        self._seen.clear()

    def settled(self) -> RedisCount:
        """Waits until nothing follows any more."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() - self._last < QUIET_FOR and time.monotonic() < give_up:
            time.sleep(0.05)
        seen = list(self._seen)
        messages = sum(command.upper().startswith("LPUSH ") for command in seen)
        return RedisCount(messages=messages, commands=len(seen) + messages, bytes=sum(map(len, seen)))
