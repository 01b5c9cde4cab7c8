"""One task file, as its tools see it."""

from __future__ import annotations

from dataclasses import dataclass

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.core.standing_work import Item
from chordage.orchestrator.gateways.work.documents import Status, document_from
from chordage.orchestrator.gateways.work.front_matter import fault, parts_of


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFile:
    path: str
    raw: bytes
    text: str
    item: Item
    status: str

    @property
    def version(self) -> str:
        return self.item.hash[:12]


def read_file(path: str, raw: bytes) -> TaskFile:
    """Raises RoomError with file and line; also for what is no task any more."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise fault(path, raw[: error.start].count(b"\n") + 1, "this is not UTF-8: save it as such") from error
    item = document_from(path, text).item
    if item is None:
        raise RoomError(f"{path}:1: its id is gone: write the line `id: ...` again")
    status = parts_of(text, path).told.get("status", Status.TODO)
    return TaskFile(path=path, raw=raw, text=text, item=item, status=str(status))
