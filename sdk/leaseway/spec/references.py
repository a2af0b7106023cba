"""Configured values that workers resolve, and `${NAME}` in them (design.md#configuration).

Pure: workers expand them from a mapping; the control plane only checks them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Literal

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class Value:
    """A configured string, or a reference that the worker resolves when it starts an instance.

    Attributes:
        kind: `literal` (may contain `${NAME}` and `${NAME:-default}`), `env`, `secret` or `file`.
        text: The literal, the variable's or secret's name, or the file's path.
    """

    kind: Literal["literal", "env", "secret", "file"]
    text: str


class UnresolvedReference(Exception):
    """A variable that is not set and has no default."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the environment variable {name} is not set")
        self.name = name


def references(text: str) -> tuple[tuple[str, str | None], ...]:
    """Return the (name, default) pairs of a text's references; the default may be None."""
    head = with_ends(text)
    return tuple((match[1], match[2]) for match in _REFERENCE.finditer(head))


def with_ends(text: str) -> str:
    """Return the part of a text in which each reference that begins may end, for a search of it.

    The search would pass to the end of the text once for each reference that does not end.
    """
    return text[: text.rfind("}") + 1]


def expand(text: str, environment: Mapping[str, str], kept: Container[str] = ()) -> str:
    """Return a text with its references replaced.

    As in a shell, the default also applies if the variable is empty.

    Args:
        text: The text.
        environment: The variables.
        kept: Names whose references stay if they are not set and have no default.

    Raises:
        UnresolvedReference: A name is not set and has no default.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if default is not None:
            return environment.get(name) or default
        try:
            return environment[name]
        except KeyError:
            if name in kept:
                return match[0]
            raise UnresolvedReference(name) from None

    head = with_ends(text)
    return _REFERENCE.sub(value, head) + text[len(head) :]
