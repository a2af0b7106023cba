r"""Files of variables, as other tools write them: a `NAME=VALUE` a line. Pure.

`export` before a name, blank lines and comments are passed over. A value in single quotes is taken
as it stands, one in double quotes has `\n`, `\t`, `\"` and `\\`; without quotes it ends at ` #`.
Nothing is expanded: what a file says is what the server gets.
"""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*")
_DOUBLE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?')
_SINGLE: Final = re.compile(r"'([^']*)'\s*(?:#.*)?")
_ESCAPE: Final = re.compile(r"\\(.)")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_MOST: Final = 1_000
"""Variables of a file."""


class BadEnvFile(ValueError):
    """A file of variables can't be used; the message is the end of "the file x, ...", as why."""


def read_env_file(text: str) -> dict[str, str]:
    """Return the variables of a file; of two of one name the last.

    Raises:
        BadEnvFile: A line is no `NAME=VALUE`, or there are too many. No value is in the message.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        match = _NAME.match(words)
        value = None if match is None else _value(words[match.end() :])
        if match is None or value is None or "\0" in value:
            raise BadEnvFile(f"whose line {number} is no NAME=VALUE on one line")
        found[match[1]] = value
    if len(found) > _MOST:
        raise BadEnvFile(f"which has more than {_MOST} variables")
    return found


def _value(text: str) -> str | None:
    if text.startswith('"'):
        match = _DOUBLE.fullmatch(text)
        return None if match is None else _ESCAPE.sub(_unescaped, match[1])
    if text.startswith("'"):
        match = _SINGLE.fullmatch(text)
        return None if match is None else match[1]
    return re.split(r"\s#", text, maxsplit=1)[0].rstrip()


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[1])
