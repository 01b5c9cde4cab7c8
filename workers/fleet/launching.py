"""How processes that lead a group of their own are started: by themselves, or so that the keeper knows of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any, Protocol


class Launch(Protocol):
    """Raises OSError where it cannot be started."""

    def __call__(self, command: Sequence[str], /, **how: Any) -> subprocess.Popen[bytes]: ...


def alone(command: Sequence[str], /, **how: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **how)
