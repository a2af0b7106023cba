"""Splits a Go template into tokens: literal text, and the tokens inside `{{ }}`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from leaseway.templates.go_nodes import TemplateSyntaxError

_SPACE: Final = " \t\r\n"
_KEYWORDS: Final = frozenset(
    ("block", "break", "continue", "define", "else", "end", "if", "nil", "range", "template",
     "with")
)  # fmt: skip
_WORD: Final = re.compile(r"\w+")
_NUMBER: Final = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?"
    r"|0[oO][0-7_]+|0[bB][01_]+"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)"
)
_QUOTED: Final = {
    '"': re.compile(r'"(?:[^"\\\n]|\\[^\n])*"'),
    "'": re.compile(r"'(?:[^'\\\n]|\\[^\n])*'"),
    "`": re.compile(r"`[^`]*`"),
}
_SINGLE: Final = {"|": "pipe", "=": "assign", "(": "open", ")": "close", ",": "comma"}
_ENDS_WORD: Final = frozenset(_SPACE + ".,|:()")
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\\'\"])|([0-7]{3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))",
    re.DOTALL,
)
_SHORT: Final = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_MAX_BYTE: Final = 255


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        kind: `text`, `left`, `right`, `space`, `word`, `keyword`, `bool`, `field`, `dot`,
            `variable`, `number`, `char`, `string`, `pipe`, `assign`, `declare`, `open`, `close`,
            `comma` or `end`.
        value: Its text; for strings, the unquoted value.
        line: The line where it starts, from 1.
    """

    kind: str
    value: str
    line: int


def tokens(text: str) -> Iterator[Token]:
    """Split a template.

    Raises:
        TemplateSyntaxError: It contains an invalid token.
    """
    lexer = _Lexer(text)
    while not lexer.at_end:
        yield from lexer.text()
        yield from lexer.action()
    yield Token("end", "", lexer.line)


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.line = 1

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def text(self) -> Iterator[Token]:
        start, found = self._at, self._text.find("{{", self._at)
        end = len(self._text) if found < 0 else found
        body = self._text[start:end]
        if found >= 0 and self._trims_left(found + 2):
            body = body.rstrip(_SPACE)
        if body:
            yield Token("text", body, self.line)
        self._move(end)

    def action(self) -> Iterator[Token]:
        if self.at_end:
            return
        line = self.line
        trims = self._trims_left(self._at + 2)
        self._move(self._at + (4 if trims else 2))
        if self._text.startswith("/*", self._at):
            self._comment()
            return
        yield Token("left", "{{", line)
        depth = 0
        while not self._is_at_close():
            if self.at_end:
                raise TemplateSyntaxError(line, "the action that starts here has no '}}'")
            token = self._next()
            depth += (token.kind == "open") - (token.kind == "close")
            if depth < 0:
                raise TemplateSyntaxError(self.line, "there is a ')' without a '('")
            yield token
        if depth:
            raise TemplateSyntaxError(self.line, "a '(' is not closed")
        yield Token("right", "}}", self.line)
        self._close_action()

    def _comment(self) -> None:
        line = self.line
        end = self._text.find("*/", self._at)
        if end < 0:
            raise TemplateSyntaxError(line, "a comment has no '*/'")
        self._move(end + 2)
        if not self._is_at_close():
            raise TemplateSyntaxError(self.line, "a comment must end with '*/}}' or '*/ -}}'")
        self._close_action()

    def _trims_left(self, at: int) -> bool:
        return self._text[at : at + 1] == "-" and self._text[at + 1 : at + 2] in tuple(_SPACE)

    def _is_at_close(self) -> bool:
        text, at = self._text, self._at
        return text.startswith("}}", at) or (
            text[at : at + 1] in tuple(_SPACE) and text.startswith("-}}", at + 1)
        )

    def _close_action(self) -> None:
        if self._text.startswith("}}", self._at):
            self._move(self._at + 2)
            return
        end = self._at + 4
        while end < len(self._text) and self._text[end] in _SPACE:
            end += 1
        self._move(end)

    def _move(self, to: int) -> None:
        self.line += self._text.count("\n", self._at, to)
        self._at = to

    def _token(self, kind: str, to: int, value: str | None = None) -> Token:
        token = Token(kind, self._text[self._at : to] if value is None else value, self.line)
        self._move(to)
        return token

    def _next(self) -> Token:
        text, at = self._text, self._at
        char = text[at]
        if char in _SPACE:
            return self._space()
        if char in _SINGLE:
            return self._token(_SINGLE[char], at + 1)
        if char in _QUOTED:
            return self._quoted(char)
        if text.startswith(":=", at):
            return self._token("declare", at + 2)
        if char == "$":
            return self._name("variable", at + 1)
        if char == "." and not text[at + 1 : at + 2].isdecimal():
            named = _WORD.match(text, at + 1)
            return self._name("field", at + 1) if named else self._name("dot", at + 1)
        if char in "+-." or (char.isascii() and char.isdecimal()):
            return self._number()
        if _WORD.match(text, at):
            return self._word()
        raise TemplateSyntaxError(self.line, f"{char!a} is not allowed in an action")

    def _space(self) -> Token:
        end = self._at
        while end < len(self._text) and self._text[end] in _SPACE:
            end += 1
        if self._text.startswith("-}}", end) and end - 1 > self._at:
            end -= 1  # the last space belongs to the trim marker
        return self._token("space", end)

    def _name(self, kind: str, start: int) -> Token:
        match = _WORD.match(self._text, start) if kind != "dot" else None
        end = match.end() if match else start
        self._check_end_of_word(end)
        return self._token(kind, end)

    def _word(self) -> Token:
        match = _WORD.match(self._text, self._at)
        assert match is not None
        self._check_end_of_word(match.end())
        word = match[0]
        kind = "keyword" if word in _KEYWORDS else "bool" if word in ("true", "false") else "word"
        return self._token(kind, match.end())

    def _check_end_of_word(self, end: int) -> None:
        rest = self._text[end : end + 1]
        if rest and rest not in _ENDS_WORD and not self._text.startswith("}}", end):
            text = f"{rest!a} may not follow {self._text[self._at : end][:64]!r}"
            if rest in "-#@*[":
                text += '; a key with other characters is written like (index . "a-key")'
            raise TemplateSyntaxError(self.line, text)

    def _number(self) -> Token:
        match = _NUMBER.match(self._text, self._at)
        end = match.end() if match else self._at
        rest = self._text[end : end + 1]
        if end == self._at or rest.isalnum() or rest in ("_", "+", "-"):
            raise TemplateSyntaxError(
                self.line, f"{self._text[self._at : end + 1][:64]!r} is not a number"
            )
        return self._token("number", end)

    def _quoted(self, quote: str) -> Token:
        match = _QUOTED[quote].match(self._text, self._at)
        if match is None:
            raise TemplateSyntaxError(self.line, f"a string in {quote} quotes is not closed")
        inner = match[0][1:-1]
        if quote == "`":
            return self._token("string", match.end(), inner.replace("\r", ""))
        value = _unquoted(inner, quote, self.line)
        if quote == "'":
            if len(value) != 1:
                raise TemplateSyntaxError(self.line, f"{match[0][:64]} is not one character")
            return self._token("char", match.end(), value)
        return self._token("string", match.end(), value)


def _unquoted(inner: str, quote: str, line: int) -> str:
    if "\\" not in inner:
        return inner
    other = "'" if quote == '"' else '"'

    def character(match: re.Match[str]) -> bytes:
        short, octal, hexadecimal, small, large, _ = match.groups()
        if short is not None and short != other:
            return chr(_SHORT.get(short, ord(short))).encode()
        if octal is not None and int(octal, 8) <= _MAX_BYTE:
            return bytes([int(octal, 8)])
        if hexadecimal is not None:
            return bytes([int(hexadecimal, 16)])
        try:
            return chr(int(small or large, 16)).encode()
        except (TypeError, ValueError, OverflowError):  # surrogates cannot be encoded either
            raise TemplateSyntaxError(line, f"{match[0]!r} is not a valid escape") from None

    parts, last = [], 0
    for match in _ESCAPE.finditer(inner):
        parts += [inner[last : match.start()].encode(), character(match)]
        last = match.end()
    parts.append(inner[last:].encode())
    return b"".join(parts).decode("utf-8", "replace")
