r"""Text that others wrote, made harmless to show: it can neither act on a terminal nor change the order of words.

Control characters, among them ESC, with which every terminal sequence begins (titles, colours, the clipboard), the
marks that change the direction of writing, line separators that are no newline, and invisible characters are shown as
Python writes them: `\x1b`. Newlines and tabs stay, a carriage return only before a newline. The joiners that scripts
and emoji are written with stay as well.
"""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, C1, soft hyphen; grapheme joiner, Arabic letter mark, letters that are blank (Hangul
# fillers, Khmer inherent vowels), zero-width space, direction marks, separators, embeddings and isolates, word joiner
# and invisible operators, BOM, interlinear marks; surrogates; tags.
_ACTIVE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_UNSAFE = re.compile(f"[{_ACTIVE}]")
_UNSAFE_IN_A_LINE = re.compile(f"[{_ACTIVE}\n]")


def inert(text: str) -> str:
    """The same words, in as many lines."""
    return _UNSAFE.sub(_shown, text.replace("\r\n", "\n"))


def inert_line(text: str) -> str:
    r"""The same words in one line: a newline is shown as `\n`."""
    return _UNSAFE_IN_A_LINE.sub(_shown, text)


def inert_json(document: str) -> str:
    """A JSON document that says the same: what would act on a terminal is written as JSON escapes it."""
    return _UNSAFE.sub(_escaped, document)


def _shown(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
