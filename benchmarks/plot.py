"""docs/performance.svg: turns a second and lone turns ÷ chord, of the kept states. Bars, written as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from chordage.benchmarks.contenders import SCENARIOS

FILE = Path(__file__).resolve().parents[1] / "docs" / "performance.svg"
COLOURS = ("#b0b7c3", "#6a8caf", "#1f4e79")  # the newest state is the darkest
LEFT, RIGHT, TOP, BAR, GAP, WIDTH = 90, 60, 46, 11, 10, 380
PANELS = {"rate_ratio": "turns/s ÷ chord (more is better)", "idle_ratio": "lone turn ÷ chord (less is better)"}


def draw(states: Sequence[Mapping[str, Any]], file: Path = FILE) -> None:
    if states:
        file.write_text(picture(states))


def picture(states: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in SCENARIOS if any(name in state["speed"] for state in states)]
    height = TOP + len(names) * (len(states) * BAR + GAP) + 34
    panels = "".join(
        f'<g transform="translate({LEFT + number * (WIDTH + LEFT + RIGHT)},0)">{_panel(states, names, key, title)}</g>'
        for number, (key, title) in enumerate(PANELS.items())
    )
    colours = COLOURS[-len(states) :]
    legend = "".join(
        f'<rect x="{LEFT + 180 * n}" y="{height - 16}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{LEFT + 180 * n + 15}" y="{height - 7}">{escape(state["state"])}, {escape(state["at"][:10])}</text>'
        for n, (colour, state) in enumerate(zip(colours, states, strict=True))
    )
    width = 2 * (LEFT + WIDTH + RIGHT)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n{panels}\n{legend}\n</svg>\n'
    )


def _panel(states: Sequence[Mapping[str, Any]], names: Sequence[str], key: str, title: str) -> str:
    figures = [state["speed"][name][key] for state in states for name in names if name in state["speed"]]
    most = max(1.0, *(figure["high"] for figure in figures))
    parts = [f'<text x="0" y="20" font-weight="bold">{escape(title)}</text>']
    y = TOP
    for name in names:
        middle = y + len(states) * BAR / 2 + 4
        parts.append(f'<text x="-8" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>')
        for colour, state in zip(COLOURS[-len(states) :], states, strict=True):
            if figure := state["speed"].get(name, {}).get(key):
                parts.append(_bar(figure, y, WIDTH / most, colour))
            y += BAR
        y += GAP
    one = WIDTH / most
    parts.append(f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 8}" y2="{y - GAP + 4}" stroke="#c0392b"/>')
    parts.append(f'<text x="{one:.1f}" y="{TOP - 11}" text-anchor="middle" fill="#c0392b">chord</text>')
    return "\n".join(parts)


def _bar(figure: Mapping[str, float], y: float, unit: float, colour: str) -> str:
    """The median, with a line from the lowest to the highest repetition."""
    low, median, high = (figure[key] * unit for key in ("low", "median", "high"))
    middle = y + (BAR - 1) / 2
    return (
        f'<rect x="0" y="{y}" width="{median:.1f}" height="{BAR - 1}" fill="{colour}"/>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="#e08e0b" stroke-width="2"/>'
        f'<text x="{high + 5:.1f}" y="{middle + 4}">{figure["median"]:.2f}</text>'
    )
