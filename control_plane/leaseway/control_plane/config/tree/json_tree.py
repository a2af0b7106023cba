"""Parses JSON into a tree with the line and column of every value.

Like MCP clients, it accepts comments and a trailing comma, but nothing else that only YAML
accepts. Libraries that accept comments do not report positions, which messages need.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from json import JSONDecodeError, JSONDecoder
from typing import Final

from leaseway.control_plane.config.tree.yaml_tree import (
    MAX_DEPTH,
    MAX_NODES,
    BadText,
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)

_BLANK: Final = re.compile(r"(?:[ \t\n\r]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER: Final = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORD: Final = re.compile(r"\w+")
_WORDS: Final = {"true": True, "false": False, "null": None}
_QUOTES: Final = "'\u2018\u2019\u201c\u201d\u201e"
_decode: Final = JSONDecoder().raw_decode
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")


class BadJson(BadText):
    """A text that is not JSON, or exceeds the limits."""


def load_json(text: str, file: str = "") -> Tree:
    """Return the tree of a JSON text; `file` is that of the positions.

    Raises:
        BadJson: It is not JSON, nests too deep, or is too large.
    """
    reader = _JsonReader(text, file)
    tree, end = reader.value(reader.skip(0), 0)
    end = reader.skip(end)
    if end < len(text):
        if isinstance(tree, Leaf) and text[end] == ":":
            raise reader.unexpected(0, "'{' is expected before the first key")
        raise reader.unexpected(end, "nothing may follow the file's one value")
    return tree


class _JsonReader:
    """Parses values of one text, at offsets."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._nodes = 0

    def value(self, start: int, depth: int) -> tuple[Tree, int]:
        """Return the value that begins at an offset, and the offset after it."""
        self._bound(start, depth)
        match self._text[start : start + 1]:
            case "{":
                return self._table(start, depth + 1)
            case "[":
                return self._items(start, depth + 1)
            case '"':
                text, end = self._string(start)
                return Leaf(self._at(start), text, text), end
        number = _NUMBER.match(self._text, start)
        if number is not None:
            return self._number(number), number.end()
        word = _WORD.match(self._text, start)
        if word is not None and word[0] in _WORDS:
            return Leaf(self._at(start), _WORDS[word[0]], word[0]), word.end()
        raise self.unexpected(start, "a value is expected here")

    def skip(self, start: int) -> int:
        """Return the offset after white space and comments."""
        blank = _BLANK.match(self._text, start)
        return start if blank is None else blank.end()

    def unexpected(self, at: int, expected: str) -> BadJson:
        """Return the error of an unexpected character."""
        found = self._text[at : at + 1]
        if not found:
            advice = ", but the file ends"
        elif found in _QUOTES or (_WORD.match(found) and not found.isdigit()):
            advice = "; texts and keys need straight double quotes"
        elif found == "/":
            advice = "; a comment that begins here does not end"
        else:
            advice = f", not {found!a}"
        return self._error(at, expected + advice)

    def _table(self, start: int, depth: int) -> tuple[Table, int]:
        entries: list[TableEntry] = []
        offset = self.skip(start + 1)
        while self._text[offset : offset + 1] != "}":
            if self._text[offset : offset + 1] != '"':
                raise self.unexpected(offset, "a key or '}' is expected here")
            name, end = self._string(offset)
            colon = self.skip(end)
            if self._text[colon : colon + 1] != ":":
                raise self.unexpected(colon, f"':' is expected after the key {name[:80]!a}")
            value, end = self.value(self.skip(colon + 1), depth)
            entries.append(TableEntry(name, self._at(offset), value))
            offset = self._next(end, "}")
        return Table(self._at(start), tuple(entries)), offset + 1

    def _items(self, start: int, depth: int) -> tuple[Items, int]:
        items: list[Tree] = []
        offset = self.skip(start + 1)
        while self._text[offset : offset + 1] != "]":
            item, end = self.value(offset, depth)
            items.append(item)
            offset = self._next(end, "]")
        return Items(self._at(start), tuple(items)), offset + 1

    def _next(self, end: int, closing: str) -> int:
        """Return the offset of the next item, or of the closing character."""
        offset = self.skip(end)
        if self._text[offset : offset + 1] == ",":
            return self.skip(offset + 1)
        if self._text[offset : offset + 1] != closing:
            raise self.unexpected(offset, f"',' or '{closing}' is expected here")
        return offset

    def _string(self, start: int) -> tuple[str, int]:
        try:
            decoded, end = _decode(self._text, start)
        except JSONDecodeError as error:
            raise self._bad_string(start, error) from None
        text = str(decoded)
        if _HALF_PAIR.search(text):
            raise self._error(start, "this text contains half of a surrogate pair")
        return text, end

    def _bad_string(self, start: int, error: JSONDecodeError) -> BadJson:
        if error.msg.startswith("Unterminated"):
            return self._error(start, "the text that begins here has no closing quote")
        if error.msg.startswith("Invalid control"):
            return self._error(error.pos, "write a line break or tab in a text as \\n or \\t")
        return self._error(
            error.pos, "this escape in a text is not one of JSON's; write \\\\ for \\"
        )

    def _number(self, found: re.Match[str]) -> Leaf:
        at, text = self._at(found.start()), found[0]
        try:
            return Leaf(at, float(text) if found[2] or found[3] else int(text), text)
        except ValueError:  # Python limits the digits of an integer
            raise self._error(found.start(), "this number has too many digits") from None

    def _bound(self, start: int, depth: int) -> None:
        self._nodes += 1
        if depth > MAX_DEPTH:
            message = f"Objects and lists nest deeper than {MAX_DEPTH} levels here."
            raise BadJson(self._at(start), message)
        if self._nodes > MAX_NODES:
            raise BadJson(self._at(start), f"The file contains more than {MAX_NODES} values.")

    def _error(self, at: int, what: str) -> BadJson:
        return BadJson(self._at(at), f"This is not valid JSON: {what}.")

    def _at(self, offset: int) -> Position:
        line = bisect_right(self._lines, offset)
        return Position(line, offset - self._lines[line - 1] + 1, self._file)
