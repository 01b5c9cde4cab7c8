"""The files of scheduled work: which there are, and how one is replaced while people edit it.

Files are found, and changes noticed, without reading them. A file is replaced in one move, by a process that holds its
folder, and only while it is what was read: an editor that saves in between is not overwritten. Between that check and
the move is a moment that no file system closes.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chordage.orchestrator.core.errors import LostRace, RoomError
from chordage.orchestrator.gateways.room.files import Stamp
from chordage.orchestrator.gateways.schedules.front_matter import fault
from chordage.orchestrator.system import private_files

FOLDERS = ("tasks", "chores")
WILL = "will.md"
LARGEST = 1024 * 1024  # bytes of one file
DEEPEST = 30  # folders in each other
# Control characters, separators of lines, marks of direction, and what is no UTF-8: files are named in one line.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class _NotUsable(Exception):
    """Why a file or folder is not read."""


@dataclass(frozen=True, slots=True)
class WorkFiles:
    stamps: dict[str, Stamp] = field(default_factory=dict)  # by path in the room
    faults: dict[str, RoomError] = field(default_factory=dict)  # by path, of a file or a whole folder


def find(room: Path) -> WorkFiles:
    files = WorkFiles()
    inside = room.resolve()
    for name in FOLDERS:
        _add_folder(inside, name, files)
    _add_file(inside / WILL, inside, files)
    return WorkFiles(dict(sorted(files.stamps.items())), files.faults)


def _add_folder(room: Path, folder: str, files: WorkFiles) -> None:
    try:
        _check_folder(room / folder, folder)
        with os.scandir(room / folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        return
    except (_NotUsable, OSError) as error:
        files.faults[folder] = fault(folder, 1, _why(error))
        return
    for entry in visible:
        is_work, path = entry.name.endswith(".md"), f"{folder}/{entry.name}"
        if not is_work and not _is_folder(entry, path, files):
            continue
        if _UNSEEN.search(path):
            why = "its name is not UTF-8, or has invisible characters: rename it"
            files.faults[ascii(path)] = fault(ascii(path), 1, why)
        elif is_work:
            _add_file(entry, room, files)
        else:
            _add_folder(room, path, files)


def _check_folder(place: Path, folder: str) -> None:
    if place.is_symlink():
        raise _NotUsable("is a link to a folder, which is not followed: put the folder itself here")
    if folder.count("/") > DEEPEST:
        raise _NotUsable(f"is nested more than {DEEPEST} folders deep: move it up")


def _is_folder(entry: os.DirEntry[str], path: str, files: WorkFiles) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # of a link that leads in a circle
        files.faults[path] = fault(path, 1, _why(error))
        return False


def _add_file(entry: os.DirEntry[str] | Path, room: Path, files: WorkFiles) -> None:
    path = os.fspath(entry)[len(os.fspath(room)) + 1 :]
    try:
        files.stamps[path] = _stamp(entry, room)
    except FileNotFoundError:
        return
    except (_NotUsable, OSError) as error:
        files.faults[path] = fault(path, 1, _why(error))


def _stamp(entry: os.DirEntry[str] | Path, room: Path) -> Stamp:
    if entry.is_symlink() and not Path(os.path.realpath(entry)).is_relative_to(room):  # resolve() fails on a circle
        raise _NotUsable("is a link that leads out of the room, and is not followed: put the file itself here")
    status = entry.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _NotUsable("is no file: take it away, or give it another name")
    if status.st_size > LARGEST:
        raise _NotUsable(f"has {status.st_size} bytes, the limit is {LARGEST}: make it shorter")
    return status.st_mtime_ns, status.st_size, status.st_ino


def _why(error: _NotUsable | OSError) -> str:
    if isinstance(error, _NotUsable):
        return str(error)
    return f"cannot be read ({error.strerror}): put it right, or take it away"


def has_fault(path: str, faults: Mapping[str, RoomError]) -> bool:
    """Of the file itself, or of a folder that it is in."""
    parts = path.split("/")
    return any("/".join(parts[:length]) in faults for length in range(1, len(parts) + 1))


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """No other process of ours on this machine changes a file of that folder meanwhile; an editor may."""
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def replace(file: Path, before: bytes, after: bytes) -> None:
    """Raises LostRace when the file is not what it was."""
    file = file.resolve()
    with private_files.staged(file, after, sync=True) as new:
        shutil.copymode(file, new)
        is_same = file.read_bytes() == before
        if is_same:
            new.replace(file)
    if not is_same:
        raise LostRace(f"{file.name} has changed since it was read")


def new_id(path: str, raw: bytes, changed_ns: int) -> str:
    """The same in every process that reads the same file, so that it does not matter which one writes it."""
    digest = hashlib.sha256(b"\0".join([path.encode(), str(changed_ns).encode(), raw])).digest()
    return base64.b32encode(digest[:5]).decode().lower()
