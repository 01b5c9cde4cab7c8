"""The plugins of an agent file: [permission], [stops] and [[plugins]]. Each is made once, so that what is wrong with it
is told with its line; the crew of a run is made from the definition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chordage.orchestrator.core.agent import PluginUse
from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways import room_lines, room_tools
from chordage.orchestrator.gateways.room_table import TABLE, TEXT, Kind, Source, Table, above_tables
from chordage.orchestrator.gateways.room_trace import Traces, trace_of
from chordage.orchestrator.plugins import loading
from chordage.orchestrator.plugins.base import Plugin
from chordage.orchestrator.plugins.ordering import ordered

TABLES = Kind(
    words="a list of tables, each under [[plugins]]",
    fits=lambda value: isinstance(value, list) and all(isinstance(one, dict) for one in value),
)
SHORT = ("permission", "stops")  # plugins with a table of their own

_HEADER = re.compile(r"""^\s*\[\[\s*["']?plugins["']?\s*\]\]""", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    use: PluginUse
    where: str  # its table
    line: int | None = None  # None: the line of that table
    text: str = ""  # the lines of its [[plugins]] table

    def complain(self, source: Source, why: str, option: str | None) -> None:
        path = (self.where, option) if option else (self.where,)
        source.complain(path, why, line=self.line and self.line + room_lines.line_of(self.text, path) - 1)


def read(table: Table, room: Path, reads: Traces) -> tuple[PluginUse, ...]:
    """What is wrong is noted in the table's source. `reads` is given the room's files that plugins stand in."""
    asked = [*_short(table), *_long(table)]
    _trace(asked, room, reads)
    made = [plugin for one in asked if (plugin := _made(one, table))]
    if len(made) == len(asked):
        _check_order(made, asked, table.source)
    return tuple(one.use for one in asked)


def _short(table: Table) -> Iterator[_Asked]:
    for name in SHORT:
        if name in table.values and TABLE.fits(table.values[name]):
            yield _Asked(use=PluginUse(use=name, options=table.inner(name).values), where=name)
        else:
            table.take(name, TABLE, {})


def _long(table: Table) -> Iterator[_Asked]:
    """Written as plugins = [{...}] they all have the line of the key."""
    found: list[dict[str, Any]] = table.take("plugins", TABLES, [])
    places = _places(table.source.text)
    for number, values in enumerate(found):
        line, text = places[number] if len(places) == len(found) else (None, "")
        name = values.get("use")
        if TEXT.fits(name):
            options = {key: value for key, value in values.items() if key != "use"}
            yield _Asked(use=PluginUse(use=str(name), options=options), where="plugins", line=line, text=text)
        else:
            why = 'each needs `use = "..."`, the name of a plugin or module:Class'
            table.complain("plugins", f"{why}; got {name!r}" if "use" in values else why, line=line)


def _places(text: str) -> list[tuple[int, str]]:
    """Of each [[plugins]] header its line, and the text from there to the next one."""
    starts = [found.start() + len(found[0]) - len(found[0].lstrip()) for found in _HEADER.finditer(text)]
    ends = [*starts[1:], len(text)]
    return [(text.count("\n", 0, start) + 1, text[start:end]) for start, end in zip(starts, ends, strict=False)]


def _trace(asked: list[_Asked], room: Path, reads: Traces) -> None:
    """A plugin of the room that could not be imported is tried again when its file has changed."""
    for one in asked:
        module, colon, _ = one.use.use.partition(":")
        if colon and one.use.use not in loading.SHIPPED:
            room_tools.make_importable(room)
            path = room / f"{module.replace('.', '/')}.py"
            reads[path] = trace_of(path)


def _made(one: _Asked, table: Table) -> Plugin | None:
    try:
        return loading.plugin_of(one.use)
    except loading.PluginRefused as error:
        why = str(error) if one.where != "plugins" else f"{one.use.use!r}: {error}"
        if error.option and error.option in table.of_file and one.where != "plugins":
            why = f"there is no such option; {above_tables(error.option)}"
        one.complain(table.source, why, error.option)
        return None


def _check_order(made: list[Plugin], asked: list[_Asked], source: Source) -> None:
    try:
        ordered(made)
    except RoomError as error:
        asked[-1].complain(source, str(error), None)
