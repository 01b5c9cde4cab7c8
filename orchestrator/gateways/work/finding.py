"""Which files of the room are work, and whether they have changed, without reading one of them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.room.files import Stamp
from chordage.orchestrator.gateways.work.front_matter import fault

FOLDERS = ("tasks", "chores")
WILL = "will.md"
LARGEST = 1024 * 1024  # bytes of one file
DEEPEST = 30  # folders in each other
# Control characters, separators of lines, marks of direction, and what is no UTF-8: files are named in one line.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    files: dict[str, Stamp]  # by path in the room, in order
    faults: dict[str, RoomError] = field(default_factory=dict)  # by path, of a file or a whole folder


def find(room: Path) -> Found:
    found = Found(files={})
    inside = room.resolve()
    for name in FOLDERS:
        _walk(inside, name, found)
    _look_at(inside / WILL, inside, found)
    return Found(files=dict(sorted(found.files.items())), faults=found.faults)


def _walk(room: Path, folder: str, found: Found) -> None:
    try:
        _check_folder(room / folder, folder)
        with os.scandir(room / folder) as entries:
            inner = [entry for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        return
    except (Refused, OSError) as error:
        found.faults[folder] = fault(folder, 1, _why(error))
        return
    for entry in inner:
        is_work, path = entry.name.endswith(".md"), f"{folder}/{entry.name}"
        if not is_work and not _is_folder(entry, path, found):
            continue
        if _UNSEEN.search(path):
            why = "its name is not UTF-8, or has characters that nobody sees: rename it"
            found.faults[ascii(path)] = fault(ascii(path), 1, why)
        elif is_work:
            _look_at(entry, room, found)
        else:
            _walk(room, path, found)


def _is_folder(entry: os.DirEntry[str], path: str, found: Found) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # of a link that leads in a circle
        found.faults[path] = fault(path, 1, _why(error))
        return False


def _check_folder(place: Path, folder: str) -> None:
    if place.is_symlink():
        raise Refused("is a link to a folder, which is not followed: put the folder itself here")
    if folder.count("/") > DEEPEST:
        raise Refused(f"folders lie more than {DEEPEST} deep here: move it up")


def _look_at(entry: os.DirEntry[str] | Path, room: Path, found: Found) -> None:
    path = os.fspath(entry)[len(os.fspath(room)) + 1 :]
    try:
        found.files[path] = _checked(entry, room)
    except FileNotFoundError:
        return
    except (Refused, OSError) as error:
        found.faults[path] = fault(path, 1, _why(error))


def _checked(entry: os.DirEntry[str] | Path, room: Path) -> Stamp:
    if entry.is_symlink() and not Path(os.path.realpath(entry)).is_relative_to(room):  # resolve() fails on a circle
        raise Refused("is a link that leads out of the room, and is not followed: put the file itself here")
    status = entry.stat()
    if not stat.S_ISREG(status.st_mode):
        raise Refused("is no file: take it away, or give it another name")
    if status.st_size > LARGEST:
        raise Refused(f"has {status.st_size} bytes, the limit is {LARGEST}: make it shorter")
    return status.st_mtime_ns, status.st_size, status.st_ino


def _why(error: Refused | OSError) -> str:
    if isinstance(error, Refused):
        return str(error)
    return f"cannot be read ({error.strerror}): put it right, or take it away"


class Refused(Exception):
    """Why a file is none of ours."""


def below(path: str, faults: dict[str, RoomError]) -> Iterator[str]:
    """What there may be a fault of: the file itself, and the folders it lies in."""
    parts = path.split("/")
    return (place for place in ("/".join(parts[:length]) for length in range(1, len(parts) + 1)) if place in faults)
