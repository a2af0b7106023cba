"""Tools that a client's file denies by their full name, such as `mcp__files__delete`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from leaseway.control_plane.config.schema.issues import quoted
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Position
from leaseway.spec.filters.names import matches

CLAUDE: Final = ("mcp__{}__",)
"""How Claude Code writes the part of a full name before the tool's own."""
_NO_ID: Final = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True)
class DeniedTools:
    """Tools that a client's file denies by their full name, for servers of any file.

    Attributes:
        text: The full name; `*` matches any characters.
        forms: How the client writes the part before a tool's own name; `{}` is the server.
        asks: Whether the tools may be called, but only after a person was asked.
    """

    text: str
    at: Position
    forms: tuple[str, ...]
    asks: bool = False


def id_of(name: str) -> str:
    """Return the id that a server's name in a client's file becomes; empty for an empty name.

    One without any letter that an id may have gets a number that is always the same.
    """
    made = _NO_ID.sub("_", name).strip("_")
    return made or (f"server_{crc32(name.encode()):08x}" if name.strip() else "")


def denied_of(
    denied: Sequence[DeniedTools], name: str
) -> tuple[bool, list[Leaf], DeniedTools | None]:
    """Return what full names deny of a server.

    Returns:
        Whether the whole server is denied, patterns of its denied tools, and the first entry for
        which a person must be asked.
    """
    patterns: list[Leaf] = []
    asked: DeniedTools | None = None
    for denial in denied:
        whole, found = _parts(denial, name)
        if denial.asks and (whole or found):
            asked = asked or denial
        elif whole:
            return True, [], asked
        else:
            patterns += [Leaf(denial.at, part, part) for part in found]
    return False, patterns, asked


def asked_message(asked: DeniedTools) -> str:
    """Return why a server is refused some of whose tools need a person's consent."""
    return (
        f"{quoted(asked.text)} may run only after a person was asked, which this file's client does"
        " and Leaseway does for tools with 'risk: financial' alone; the server is refused rather"
        " than run without it. Set 'risk' or 'tools' on the server in native keys, and remove it"
        " here."
    )


def _parts(denied: DeniedTools, name: str) -> tuple[bool, list[str]]:
    """Return whether a full name covers a whole server, and the patterns of its tools."""
    found: list[str] = []
    text = denied.text
    for form in denied.forms:
        for server in dict.fromkeys((name, id_of(name), re.sub(r"[^a-zA-Z0-9_-]", "_", name))):
            prefix = form.format(server)
            if form.startswith("mcp__") and matches(text, prefix.removesuffix("__")):
                return True, []
            found += _rests(text, prefix)
    unique = list(dict.fromkeys(part for part in found if part))
    return "*" in unique, unique


def _rests(pattern: str, prefix: str) -> Iterator[str]:
    """Yield patterns of what may follow a prefix in a text that matches the pattern."""
    head, star, _ = pattern.partition("*")
    if not star or not prefix.startswith(head):
        if pattern.startswith(prefix):
            yield pattern.removeprefix(prefix)
        return
    for at in range(len(pattern) + 1):
        head = pattern[:at]
        if at < len(pattern) and pattern[at] == "*" and matches(f"{head}*", prefix):
            yield pattern[at:]
        if matches(head, prefix):
            yield pattern[at:]
