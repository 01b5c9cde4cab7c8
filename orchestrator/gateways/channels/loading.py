"""From what a binding asks for to its channel: shipped plugins, then entry points, then import paths."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points

from chordage.orchestrator.core.errors import RoomError
from chordage.orchestrator.gateways.channels.guarding import GuardedChannel, masked
from chordage.orchestrator.gateways.channels.reading import FROM_ENVIRONMENT, ChannelBinding
from chordage.orchestrator.gateways.ports import Channel
from chordage.orchestrator.gateways.room.tables import read_table
from chordage.orchestrator.plugins.base import OptionRefused
from chordage.orchestrator.system import user_code

ENTRY_POINTS = "chordage.channels"
USUALLY = 5.0  # seconds between two looks of a plugin that says nothing else
# Seconds between two looks that bring nothing. A long poll waits by itself. Each is a module here of the same name,
# imported with the first channel of its kind: mail and its like are dear to load, and most workers have none.
SHIPPED = {
    "telegram": 0.25,
    "imap": 30.0,
    "http_json": 10.0,
    "webhook": 3600.0,  # replies go out there, and nothing comes in
}


def every_of(binding: ChannelBinding) -> float:
    usual = SHIPPED.get(binding.plugin, USUALLY)
    return usual if binding.every is None else binding.every


def channel_of(binding: ChannelBinding) -> Channel:
    """Connects to nothing. RoomError says what is wrong on which line."""
    if binding.plugin in SHIPPED:
        return GuardedChannel(binding.name, _shipped(binding), binding.secrets)
    try:
        return GuardedChannel(binding.name, _of_ones_own(binding), binding.secrets)
    except user_code.NotLoaded as error:
        raise RoomError(f"{binding.place('plugin')}: {error}{_hint(binding.plugin)}") from error


def further_faults(binding: ChannelBinding, told: RoomError) -> RoomError:
    """What its plugin has to say of a binding that is broken already, so that all of it is put right in one go."""
    if binding.plugin not in SHIPPED:
        return told
    try:
        _shipped(binding)
    except RoomError as error:
        known = {_key(line).removesuffix(FROM_ENVIRONMENT) for line in str(told).splitlines()}
        more = [line for line in str(error).splitlines() if _key(line) not in known]
        return RoomError("\n".join([str(told), *more]))
    return told


def _key(line: str) -> str:
    """Of `channels.toml:6: channels.phone.config.token: ...` what stands behind the line's number."""
    return line.partition(": ")[2].partition(": ")[0]


def _shipped(binding: ChannelBinding) -> Channel:
    source, path = binding.source.beside(), (*binding.path, "config")
    plugin = import_module(f"{__package__}.{binding.plugin}")
    table = read_table(plugin.TABLE, source, binding.config, path)
    channel: Channel = plugin.make(binding.name, table, lambda key, why: source.complain((*path, *key.split(".")), why))
    if source.error is not None:
        raise RoomError(masked(str(source.error), binding.secrets))
    return channel


def _of_ones_own(binding: ChannelBinding) -> Channel:
    make = user_code.load_function(binding.plugin, ENTRY_POINTS, what="channel plugin")
    try:
        made = make(binding.name, dict(binding.config))
    except OptionRefused as error:
        raise RoomError(masked(f"{binding.place('config', error.option)}: {error.why}", binding.secrets)) from None
    except user_code.failures() as error:
        words = f"{binding.place('config')}: {binding.plugin} raised {type(error).__name__}: {error}"
        raise RoomError(masked(words, binding.secrets)) from None
    if missing := [name for name in ("poll", "deliver", "close") if not callable(getattr(made, name, None))]:
        raise RoomError(f"{binding.place('plugin')}: what {binding.plugin} makes has no {', '.join(missing)}")
    channel: Channel = made
    return channel


def _hint(name: str) -> str:
    offered = sorted({*SHIPPED, *(point.name for point in entry_points(group=ENTRY_POINTS))})
    close = get_close_matches(name, offered, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(offered)}"
