"""The meaning of each reason of a problem or an error, and what an operator does about it.

The entries are data (`entries.toml`): `docs/runbook.md` is written from them, the console and
`leaseway runbook` show them. Imports nothing of Leaseway; the call path never imports it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

_HEAD = """\
# Runbook

Every reason that a problem (`leaseway problems`) or an error can have: what causes it, where to
look, what to do. `leaseway runbook REASON` prints an entry, the console shows it beside each
problem.

This page is written by `make runbook` from `sdk/leaseway/runbook/entries.toml`; change that file.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What an operator should know of one reason.

    Attributes:
        reason: The constant that problems and errors bear.
        group: What kind of trouble it belongs to.
        cause: Why it happens.
        look: What to look at.
        do: What to do.
    """

    reason: str
    group: str
    cause: str
    look: str
    do: str


@cache
def entries() -> Mapping[str, Entry]:
    """Return all entries by reason, in the order of the page."""
    text = files(__name__).joinpath("entries.toml").read_text(encoding="utf-8")
    return MappingProxyType(
        {
            reason: Entry(reason, group["title"], **parts)
            for group in tomllib.loads(text)["group"]
            for reason, parts in group["reasons"].items()
        }
    )


def markdown() -> str:
    """Return the page `docs/runbook.md`."""
    lines = [_HEAD]
    group = ""
    for entry in entries().values():
        if entry.group != group:
            group = entry.group
            lines.append(f"## {group}\n")
        lines.append(f"### {entry.reason}\n")
        lines.append(f"{entry.cause}\n")
        lines.append(f"- **Look at** {entry.look}")
        lines.append(f"- **Do** {entry.do}\n")
    return "\n".join(lines).rstrip() + "\n"
