"""JSON as a tree in which every value knows its line and column.

It is JSON as its clients read it: comments and a comma behind the last item are let pass, as in
their own files. Nothing else that YAML would take is: a `.json` file that works here is JSON.

Libraries that let comments pass do not tell where keys and values stand, and messages must.
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
_decode: Final = JSONDecoder().raw_decode
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")


class BadJson(BadText):
    """A text that is not the JSON that a configuration may be."""


def load_json(text: str, file: str = "") -> Tree:
    """Return a text's tree.

    Args:
        text: JSON.
        file: What the positions of the values say they are in.

    Raises:
        BadJson: It is not JSON, nests too deep, or is too large.
    """
    reader = _JsonReader(text, file)
    tree, end = reader.value(reader.skip(0), 0)
    end = reader.skip(end)
    if end < len(text):
        raise reader.wrong(end, "nothing may follow the value that the file consists of")
    return tree


class _JsonReader:
    """Reads values of one text; places in it are offsets."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._nodes = 0

    def value(self, start: int, depth: int) -> tuple[Tree, int]:
        """Return the value that begins at a place, and the place behind it."""
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
        raise self.wrong(start, "a value is expected here")

    def skip(self, start: int) -> int:
        """Return the place behind white space and comments."""
        blank = _BLANK.match(self._text, start)
        return start if blank is None else blank.end()

    def wrong(self, at: int, what: str) -> BadJson:
        """Return the error of something else than expected."""
        found = self._text[at : at + 1]
        if not found:
            what += ", but the file ends"
        elif found == "'" or (_WORD.match(found) and not found.isdigit()):
            what += "; text and keys stand in double quotes"
        elif found == "/":
            what += "; a comment that begins here does not end"
        else:
            what += f", not {found!a}"
        return self._error(at, what)

    def _table(self, start: int, depth: int) -> tuple[Table, int]:
        entries: list[TableEntry] = []
        place = self.skip(start + 1)
        while self._text[place : place + 1] != "}":
            if self._text[place : place + 1] != '"':
                raise self.wrong(place, "a key or '}' is expected here")
            name, end = self._string(place)
            colon = self.skip(end)
            if self._text[colon : colon + 1] != ":":
                raise self.wrong(colon, f"':' is expected behind the key {name[:80]!a}")
            value, end = self.value(self.skip(colon + 1), depth)
            entries.append(TableEntry(name, self._at(place), value))
            place = self._next(end, "}")
        return Table(self._at(start), tuple(entries)), place + 1

    def _items(self, start: int, depth: int) -> tuple[Items, int]:
        items: list[Tree] = []
        place = self.skip(start + 1)
        while self._text[place : place + 1] != "]":
            item, end = self.value(place, depth)
            items.append(item)
            place = self._next(end, "]")
        return Items(self._at(start), tuple(items)), place + 1

    def _next(self, end: int, closing: str) -> int:
        """Return the place of what follows an item: another one, or what closes the whole."""
        place = self.skip(end)
        if self._text[place : place + 1] == ",":
            return self.skip(place + 1)
        if self._text[place : place + 1] != closing:
            raise self.wrong(place, f"',' or '{closing}' is expected here")
        return place

    def _string(self, start: int) -> tuple[str, int]:
        try:
            decoded, end = _decode(self._text, start)
        except JSONDecodeError as error:
            raise self._bad_string(start, error) from None
        text = str(decoded)
        if _HALF_PAIR.search(text):
            raise self._error(start, "this text holds half of a surrogate pair")
        return text, end

    def _bad_string(self, start: int, error: JSONDecodeError) -> BadJson:
        if error.msg.startswith("Unterminated"):
            return self._error(start, "the text that begins here has no closing quote")
        if error.msg.startswith("Invalid control"):
            what = "a line break or tab in a text is written \\n or \\t"
            return self._error(error.pos, what)
        return self._error(error.pos, "this escape in a text is none of JSON's; write \\\\ for \\")

    def _number(self, found: re.Match[str]) -> Leaf:
        at, text = self._at(found.start()), found[0]
        try:
            return Leaf(at, float(text) if found[2] or found[3] else int(text), text)
        except ValueError:  # Python bounds the digits of an integer
            raise self._error(found.start(), "this number has too many digits") from None

    def _bound(self, start: int, depth: int) -> None:
        self._nodes += 1
        if depth > MAX_DEPTH:
            message = f"Objects and lists nest deeper than {MAX_DEPTH} levels here."
            raise BadJson(self._at(start), message)
        if self._nodes > MAX_NODES:
            raise BadJson(self._at(start), f"The file holds more than {MAX_NODES} values.")

    def _error(self, at: int, what: str) -> BadJson:
        return BadJson(self._at(at), f"This is not valid JSON: {what}.")

    def _at(self, offset: int) -> Position:
        line = bisect_right(self._lines, offset)
        return Position(line, offset - self._lines[line - 1] + 1, self._file)
