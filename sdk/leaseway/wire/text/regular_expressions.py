"""Which regular expressions JavaScript reads: those of JSON Schema are its own (ECMA-262). Pure.

Servers write them as their own language has them. Clients in JavaScript read them with the flag
`u`, and give up a whole list of tools for one that is none.
"""

from __future__ import annotations

import re
from typing import Final

_HEX: Final = "[0-9a-fA-F]"
_CATEGORIES: Final = (
    "C[cfnos]?|L[Clmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|Letter|Cased_Letter"
    "|Uppercase_Letter|Lowercase_Letter|Titlecase_Letter|Modifier_Letter|Other_Letter|Mark|Number"
    "|Decimal_Number|Letter_Number|Other_Number|Punctuation|Symbol|Math_Symbol|Currency_Symbol"
    "|Separator|Space_Separator|Other|Control|Format"
)
_BINARY: Final = (
    "Any|ASCII|Alphabetic|Alpha|Lowercase|Lower|Uppercase|Upper|White_Space|space|Emoji"
    "|Emoji_Presentation|Extended_Pictographic|Ideographic|ID_Start|ID_Continue|Hex_Digit"
    "|ASCII_Hex_Digit"
)
_PROPERTY: Final = (
    rf"[pP]\{{(?:(?:(?:General_Category|gc)=)?(?:{_CATEGORIES})|{_BINARY}"
    r"|(?:Script|sc|Script_Extensions|scx)=[A-Z][A-Za-z_]*)\}"
)
_CHARACTER: Final = (
    r"[tnvfr^$\\.*+?()\[\]{}|/]|0(?![0-9])|c[A-Za-z]"
    rf"|x{_HEX}{{2}}|u{_HEX}{{4}}|u\{{0*(?:{_HEX}{{1,5}}|10{_HEX}{{4}})\}}"
)
"""What follows a backslash that stands for one character."""
_SET: Final = f"[dDwWsS]|{_PROPERTY}"
"""What follows a backslash that stands for one of several characters."""
_NAME: Final = "[A-Za-z_$][A-Za-z0-9_$]*"
_token: Final = re.compile(
    rf"(?P<assertion>\^|\$|\\[bB])"
    rf"|(?P<open>\((?:\?(?:[:=!]|<[=!]|<(?P<name>{_NAME})>))?)"
    r"|(?P<close>\))"
    r"|(?P<either>\|)"
    r"|(?P<repeat>(?:[*+?]|\{(?P<least>[0-9]{1,9})(?:,(?P<most>[0-9]{0,9}))?\})\??)"
    r"|(?P<class>\[\^?)"
    rf"|\\(?:{_CHARACTER}|{_SET}|(?P<number>[1-9][0-9]*)|k<(?P<reference>{_NAME})>)"
    r"|[^\\^$.*+?()\[\]{}|]|\.",
    re.DOTALL,
).match
_in_class: Final = re.compile(
    rf"(?P<set>\\(?:{_SET}))|\\(?:{_CHARACTER}|[-b])|[^\\\]]", re.DOTALL
).match
_quoted: Final = re.compile(r"\\.|\[(?:[^\\\]]|\\.)*+\]?", re.DOTALL).sub
"""Escapes and classes. One without an end takes the rest, so that none begins within it."""
_find_lookaround: Final = re.compile(r"\(\?<?[=!]").search
_SPECIAL: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0, "b": 8}
_LOOKAROUNDS: Final = ("(?=", "(?!", "(?<=", "(?<!")


def is_javascript(pattern: str) -> bool:
    """Return whether JavaScript reads a regular expression."""
    captured: list[str] = []  # the names of groups; empty for one without a name
    references: set[str] = set()
    highest = 0  # of the groups that are referred to by number
    open_groups: list[bool] = []  # whether each may be repeated
    may_repeat = False
    at = 0
    while at < len(pattern):
        token = _token(pattern, at)
        if token is None:
            return False
        at = token.end()
        if token["repeat"] is not None:
            if not (may_repeat and _is_range(token["least"], token["most"])):
                return False
            may_repeat = False
        elif (opened := token["open"]) is not None:
            open_groups.append(opened not in _LOOKAROUNDS)
            if opened == "(" or token["name"] is not None:
                captured.append(token["name"] or "")
            may_repeat = False
        elif token["close"] is not None:
            if not open_groups:
                return False
            may_repeat = open_groups.pop()
        elif token["class"] is not None:
            at = _end_of_class(pattern, at) or len(pattern) + 1
            may_repeat = True
        else:
            highest = max(highest, int((token["number"] or "0")[:9]))
            references.add(token["reference"] or "")
            may_repeat = token.lastgroup not in ("assertion", "either")
    names = [name for name in captured if name]
    are_known = references <= {"", *names} and highest <= len(captured)
    return at == len(pattern) and not open_groups and are_known and len({*names}) == len(names)


def _is_range(least: str | None, most: str | None) -> bool:
    return not (least and most) or int(least) <= int(most)


def has_lookaround(pattern: str) -> bool:
    """Return whether a regular expression looks ahead or behind."""
    return _find_lookaround(_quoted("", pattern)) is not None


def _end_of_class(pattern: str, at: int) -> int:
    """Return where a class ends whose members begin at a place; 0 if it is none."""
    while not pattern.startswith("]", at):
        first = _in_class(pattern, at)
        if first is None:
            return 0
        at = first.end()
        if not pattern.startswith("-", at) or pattern.startswith("]", at + 1):
            continue
        last = _in_class(pattern, at + 1)
        if last is None or first["set"] or last["set"] or _code(first[0]) > _code(last[0]):
            return 0
        at = last.end()
    return at + 1


def _code(character: str) -> int:
    """Return the number of a character that may be escaped."""
    if len(character) == 1:
        return ord(character)
    kind, rest = character[1], character[2:].strip("{}")
    if kind in "xu":
        return int(rest, 16)
    return ord(rest) % 32 if kind == "c" and rest else _SPECIAL.get(kind, ord(kind))
