"""A rig whose pollers are killed: messages keep coming, processes keep dying, and the rows are counted."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from support import dying_poller, processes
from support.rig import Rig
from support.waiting import until

CHORDAGE = (sys.executable, "-m", "chordage.workers.cli")


def bind(rig: Rig, name: str, plugin: str, config: Mapping[str, Any], every: float = 0.05) -> None:
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
    told = [f"[channels.{name}]", f'plugin = "{plugin}"', f"every = {every}", f"[channels.{name}.config]", *lines, ""]
    with (rig.room / "channels.toml").open("a") as file:
        file.write("\n".join(told))


def orders(deaths: int) -> list[str]:
    """Each commit of a look, before and behind it, in turns."""
    places = itertools.cycle([f"{at} {when}" for at in (2, 3, 4, 1) for when in ("before", "after")])
    return list(itertools.islice(places, deaths))


@contextmanager
def dying_poll(rig: Rig, deaths: Sequence[str]) -> Iterator[None]:
    env = {**rig.env, dying_poller.ORDERS: ",".join(deaths)}
    process = processes.spawn([sys.executable, dying_poller.__file__], _log(rig), env=env, cwd=rig.folder)
    try:
        yield
        assert process.poll() is None, log_text(rig)
    finally:
        processes.stop(process, patience=3)


@contextmanager
def poll(rig: Rig) -> Iterator[Any]:
    process = processes.spawn([*CHORDAGE, "poll"], _log(rig), env=rig.env, cwd=rig.folder)
    try:
        yield process
    finally:
        processes.kill_tree(process)


def log_text(rig: Rig) -> str:
    return _log(rig).read_text(errors="replace") if _log(rig).exists() else ""


def deaths_seen(rig: Rig) -> Counter[str]:
    return Counter(re.findall(r"^life that ends at .*: (.*)$", log_text(rig), re.MULTILINE))


def wait_for_turns(rig: Rig, count: int, patience: float) -> None:
    try:
        until(lambda: len(rig.rows("turns")) >= count, f"{count} turns", patience=patience, pause=0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}; there are {len(rig.rows('turns'))}\n{log_text(rig)[-3000:]}") from None


def _log(rig: Rig) -> Any:
    return rig.folder / "poll.log"
