"""A JSON string that comes character by character, of which it only matters whether it is one of a few short words."""

from __future__ import annotations

from collections.abc import Callable

_UNESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = frozenset("0123456789abcdefABCDEF")


class ShortWord:
    """Fed what follows the opening quote. No more is kept than `longest` characters, and of padding nothing."""

    __slots__ = ("_code", "_gap", "_longest", "_read", "_spoiled", "_step", "_trims", "is_closed")

    def __init__(self, *, longest: int, trims: bool) -> None:
        self.is_closed = False
        self._longest, self._trims = longest, trims
        self._read, self._code = "", ""
        self._gap = self._spoiled = False
        self._step: Callable[[str], None] = self._inside

    @property
    def text(self) -> str:
        """Blank where it is too long to be any of the words, or is no JSON string."""
        return "" if self._spoiled else self._read

    def feed(self, char: str) -> None:
        self._step(char)

    def _inside(self, char: str) -> None:
        if char == "\\":
            self._step = self._escaped
        elif char == '"':
            self.is_closed = True
        else:
            self._take(char)

    def _escaped(self, char: str) -> None:
        if char == "u":
            self._code, self._step = "", self._coded
        elif char in _UNESCAPED:
            self._take(_UNESCAPED[char])
            self._step = self._inside
        else:
            self._spoiled, self._step = True, self._inside

    def _coded(self, char: str) -> None:
        if char not in _HEX:
            self._spoiled, self._step = True, self._inside
            self._inside(char)
            return
        self._code += char
        if len(self._code) == 4:
            self._take(chr(int(self._code, 16)))
            self._step = self._inside

    def _take(self, char: str) -> None:
        if self._trims and char.isspace():
            self._gap = bool(self._read)
        elif self._gap or len(self._read) >= self._longest:
            self._spoiled = True
        else:
            self._read += char
