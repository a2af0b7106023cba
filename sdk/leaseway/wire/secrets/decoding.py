r"""Reads a text as its readers might decode it, and where each decoded character stands. Pure.

A server can spell a value in more ways than can be listed: `\u0073`, `&#x73;`, `%73`, `73:33`, each
for all characters or for some. So the text is decoded, and searched again.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_MAX_LEVELS: Final = 3
"""Encodings inside one another, such as a URL in a URL in JSON."""
_MAX_DECODED: Final = 1 << 18
"""Characters of a text that is decoded; a longer one is only searched as it is."""

_MARK: Final = re.compile(r"[&\\%=]|[0-9A-Fa-f]{2}[:, -]")
"""A text without any of these has no other reading."""
_ENCODED: Final = re.compile(
    r"&\#(?P<decimal>\d{1,7});"
    r"|&\#[xX](?P<hex>[0-9a-fA-F]{1,6});"
    r"|(?P<named>&(?:amp|lt|gt|quot|apos);)"
    r"|\\u\{(?P<braced>[0-9a-fA-F]{1,6})\}"
    r"|\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?:\\u|%u)(?P<short>[0-9a-fA-F]{4})"
    r"|\\U(?P<long>[0-9a-fA-F]{8})"
    r"|(?P<bytes>(?:(?:\\x|%)[0-9a-fA-F]{2}|\\[0-3][0-7]{2})+)"
    r"|(?P<quoted>(?:=[0-9A-F]{2})+)"
    r"|\\(?P<plain>[\"'/\\<>&])"
    r"|(?P<list>(?<![\w.])(?:\d{1,3},[ ]?){3,4095}\d{1,3}(?![\w.]))"
    r"|(?P<dump>(?:(?:0x)?[0-9a-fA-F]{2}(?:[:-]|,?[ ]|,)){3,4095}"
    r"(?:0x)?[0-9a-fA-F]{2}(?![0-9A-Za-z]))"
)
_BYTE: Final = re.compile(r"(?:\\x|%)(?P<hex>[0-9a-fA-F]{2})|\\(?P<octal>[0-7]{3})")
_DUMPED: Final = re.compile(r"(?:0x)?(?P<hex>[0-9a-fA-F]{2})")
_NUMBER: Final = re.compile(r"\d{1,3}")


class Decoded(NamedTuple):
    """A reading of a text.

    Attributes:
        places: For each of its characters, where its spelling starts and ends in the original.
    """

    text: str
    places: list[tuple[int, int]]

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Return where a part of the decoded text stands in the original."""
        return self.places[start][0], self.places[end - 1][1]


def readings(text: str) -> Iterator[Decoded]:
    """Yield the text decoded once, twice, and so on, as long as that changes it."""
    if len(text) > _MAX_DECODED or _MARK.search(text) is None:
        return
    reading = Decoded(text, [(i, i + 1) for i in range(len(text))])
    for _ in range(_MAX_LEVELS):
        decoded = _decode(reading)
        if decoded.text == reading.text:
            return
        yield decoded
        reading = decoded


def _decode(reading: Decoded) -> Decoded:
    text, places = reading
    parts: list[str] = []
    found: list[tuple[int, int]] = []
    done = 0
    for match in _ENCODED.finditer(text):
        start = match.start()
        parts.append(text[done:start])
        found += places[done:start]
        done = match.end()
        for decoded, first, last in _characters(match):
            parts.append(decoded)
            place = places[first][0], places[last - 1][1]
            found += [place] * len(decoded)
    parts.append(text[done:])
    found += places[done:]
    return Decoded("".join(parts), found)


def _characters(match: re.Match[str]) -> Iterator[tuple[str, int, int]]:
    """Yield each decoded character of a match, with the span of its spelling."""
    start, end = match.span()
    kind = match.lastgroup
    spelled = match[kind] if kind else ""
    match kind:
        case "decimal":
            yield _character(int(spelled)), start, end
        case "hex" | "braced" | "short" | "long":
            yield _character(int(spelled, 16)), start, end
        case "low":
            pair = bytes.fromhex(match["high"] + match["low"])
            yield pair.decode("utf-16-be"), start, end
        case "named":
            yield html.unescape(spelled), start, end
        case "plain":
            yield spelled, start, end
        case "quoted":
            yield from _text(
                (int(spelled[at + 1 : at + 3], 16), start + at, start + at + 3)
                for at in range(0, len(spelled), 3)
            )
        case "bytes":
            yield from _text(
                (int(found["hex"], 16) if found["hex"] else int(found["octal"], 8), *found.span())
                for found in _BYTE.finditer(match.string, start, end)
            )
        case "dump":
            yield from _text(
                (int(found["hex"], 16), *found.span())
                for found in _DUMPED.finditer(match.string, start, end)
            )
        case _:
            yield from _text(
                (min(int(found[0]), 255), *found.span())
                for found in _NUMBER.finditer(match.string, start, end)
            )


def _text(units: Iterable[tuple[int, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Yield the characters of UTF-8 bytes; bytes that are no UTF-8 count as Latin-1."""
    found = list(units)
    raw = bytes(unit for unit, _, _ in found)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
        for char, (_, start, end) in zip(text, found, strict=True):
            yield char, start, end
        return
    at = 0
    for char in text:
        size = len(char.encode())
        yield char, found[at][1], found[at + size - 1][2]
        at += size


def _character(code: int) -> str:
    return chr(code) if code <= 0x10FFFF else "\ufffd"
