"""What a tool is called for the model: its server's name, an underscore, its own; in letters every provider takes."""

from __future__ import annotations

import re
from hashlib import sha256

LONGEST = 64
SERVER = re.compile(r"[A-Za-z0-9_-]{1,32}")
_STRANGE = re.compile(r"[^A-Za-z0-9_-]")


def prefix(server: str) -> str:
    return f"{server}_"


def offered(server: str, tool: str) -> str:
    """A name that is too long is cut, and told from others of the same beginning by what its whole comes to."""
    whole = prefix(server) + tool
    plain = _STRANGE.sub("_", whole)
    if len(plain) <= LONGEST:
        return plain
    mark = sha256(whole.encode()).hexdigest()[:8]
    return f"{plain[: LONGEST - 9]}_{mark}"
