"""From the tools that a server lists to the names that it exposes (seed 004; DESIGN §§2, 4).

Filters look at original names, transforms make exposed ones, and neither ever mends a name: a
tool whose name breaks the rule is left out with a problem. Between servers a name belongs to the
smallest server id, so that neither the order in the file nor the order of events matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from leaseway.control_plane.core.problems import Problem
from leaseway.wire.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS
from leaseway.wire.names import is_valid_name
from leaseway.wire.patterns import matches
from leaseway.wire.spec import NameFilter, ServerSpec, Transform

__all__ = [
    "DUPLICATE_TOOL_NAME",
    "INVALID_TOOL_NAME",
    "RESERVED_NAMES",
    "TOOLS_FILTERED",
    "TOOL_LISTED_TWICE",
    "TOOL_NAME_CLASH",
    "TOOL_NAME_RESERVED",
    "ClashResult",
    "Exposure",
    "expose",
    "resolve_clashes",
    "transformed",
]

RESERVED_NAMES: Final = frozenset({ADMIN_TOOLSET, *TOOL_DEFINITIONS})
"""Exposed names that only the `mcp_admin` toolset may have."""

INVALID_TOOL_NAME: Final = "INVALID_TOOL_NAME"
DUPLICATE_TOOL_NAME: Final = "DUPLICATE_TOOL_NAME"
TOOL_LISTED_TWICE: Final = "TOOL_LISTED_TWICE"
TOOLS_FILTERED: Final = "TOOLS_FILTERED"
TOOL_NAME_CLASH: Final = "TOOL_NAME_CLASH"
TOOL_NAME_RESERVED: Final = "TOOL_NAME_RESERVED"

_RULE: Final = "a tool name has 1 to 64 characters of a-z, A-Z, 0-9, '_' and '-'"
_LISTED: Final = 20
"""Names that a message lists, and problems of one reason that a server has one by one."""
_SHOWN: Final = 80
"""Characters of a name that a message shows: servers may list anything."""


@dataclass(frozen=True)
class Exposure:
    """What one server's tool list becomes.

    Attributes:
        exposed: (original name, exposed name), sorted by original name; both are valid.
        problems: Warnings about the tools that were left out.
    """

    exposed: tuple[tuple[str, str], ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class ClashResult:
    """Who has which name among all servers.

    Attributes:
        owner: From exposed name to (server id, original name).
        skipped: (server id, original name) of the tools that lost their name and don't exist.
        problems: A warning for each skipped tool, naming both servers.
    """

    owner: Mapping[str, tuple[str, str]]
    skipped: frozenset[tuple[str, str]]
    problems: tuple[Problem, ...]


def transformed(name: str, transforms: Sequence[Transform]) -> str:
    """Return an original name after each transform in order."""
    for step in transforms:
        if step.kind == "prefix":
            name = step.add + name.removeprefix(step.remove)
        else:
            name += step.add
    return name


def expose(spec: ServerSpec, originals: Sequence[str]) -> Exposure:
    """Derive what a server exposes from the tool names that it lists.

    The order of `originals` does not matter.
    """
    problems = _Problems(spec.key.server_id, spec.key.tenant)
    names = _unique(originals, problems)
    kept = _filtered(names, spec.tools, problems)
    exposed: list[tuple[str, str]] = []
    taken: dict[str, str] = {}
    for original in kept:
        name = transformed(original, spec.transforms)
        if not is_valid_name(original):
            problems.add(
                INVALID_TOOL_NAME, original, f"tool {_show(original)} is left out: {_RULE}."
            )
        elif not is_valid_name(name):
            problems.add(INVALID_TOOL_NAME, original, _invalid_exposed(original, name))
        elif name in taken:
            problems.add(DUPLICATE_TOOL_NAME, original, _duplicate(original, name, taken[name]))
        else:
            taken[name] = original
            exposed.append((original, name))
    return Exposure(tuple(exposed), problems.all())


def resolve_clashes(exposures: Mapping[str, Sequence[tuple[str, str]]]) -> ClashResult:
    """Give each exposed name to one server.

    Args:
        exposures: By server id, the (original, exposed) pairs in force. The id `mcp_admin`
            stands for Leaseway's own toolset and comes before all others.
    """
    owner: dict[str, tuple[str, str]] = {}
    skipped: set[tuple[str, str]] = set()
    problems: list[Problem] = []
    for server_id in sorted(exposures, key=lambda each: (each != ADMIN_TOOLSET, each)):
        lost = _Problems(server_id)
        clashes: dict[str, list[tuple[str, str]]] = {}
        for original, name in sorted(exposures[server_id]):
            if name in RESERVED_NAMES and server_id != ADMIN_TOOLSET:
                lost.add(TOOL_NAME_RESERVED, name, _reserved(original, name))
            elif name in owner:
                clashes.setdefault(owner[name][0], []).append((original, name))
            else:
                owner[name] = (server_id, original)
                continue
            skipped.add((server_id, original))
        for winner, lost_tools in clashes.items():
            lost.add(TOOL_NAME_CLASH, *_clash(lost_tools, winner))
        problems += lost.all()
    return ClashResult(owner, frozenset(skipped), tuple(problems))


class _Problems:
    """Collects one server's warnings; beyond `_LISTED` of a reason they become one."""

    def __init__(self, server_id: str, tenant: str = "") -> None:
        self._new = partial(
            Problem, scope="server", server_id=server_id, tenant=tenant, severity="warning"
        )
        self._server = f"Server '{server_id}'" + (f" of tenant '{tenant}'" if tenant else "")
        self._found: dict[str, list[tuple[str, str]]] = {}

    def add(self, reason: str, subject: str, message: str) -> None:
        self._found.setdefault(reason, []).append((subject, f"{self._server}: {message}"))

    def all(self) -> tuple[Problem, ...]:
        return tuple(self._each())

    def _each(self) -> Iterator[Problem]:
        for reason, found in self._found.items():
            for subject, message in found[:_LISTED]:
                yield self._new(reason=reason, message=message, subject=_clip(subject))
            rest = [subject for subject, _ in found[_LISTED:]]
            if rest:
                message = f"{self._server}: {reason} holds for {len(rest)} more: {_names(rest)}."
                yield self._new(reason=reason, message=message)


def _unique(originals: Sequence[str], problems: _Problems) -> list[str]:
    names = sorted(originals)
    repeated = {name for name, following in pairwise(names) if name == following}
    for name in sorted(repeated):
        text = f"it lists tool {_show(name)} more than once; the tool is registered once."
        problems.add(TOOL_LISTED_TWICE, name, text)
    return sorted(set(names))


def _filtered(names: Sequence[str], rules: NameFilter, problems: _Problems) -> list[str]:
    def wanted(name: str) -> bool:
        return any(matches(pattern, name) for pattern in rules.whitelist)

    def refused(name: str) -> bool:
        return any(matches(pattern, name) for pattern in rules.blacklist)

    if rules.blacklist:
        out = [name for name in names if refused(name) and not wanted(name)]
        rule, text = "blacklist", "its blacklist matches and its whitelist does not"
    elif rules.whitelist:
        out = [name for name in names if not wanted(name)]
        rule, text = "whitelist", "no pattern of its whitelist matches"
    else:
        return list(names)
    if out:
        count = f"{len(out)} tool{'s' if len(out) > 1 else ''}"
        problems.add(TOOLS_FILTERED, rule, f"{count} not registered, {text}: {_names(out)}.")
    gone = set(out)
    return [name for name in names if name not in gone]


def _invalid_exposed(original: str, name: str) -> str:
    return (
        f"tool {_show(original)} is left out: its transforms make {_show(name)} of it, but {_RULE}."
        " Change the transforms."
    )


def _duplicate(original: str, name: str, winner: str) -> str:
    return (
        f"tool {_show(original)} is left out: its transforms give it the name '{name}', which"
        f" {_show(winner)} has already. Change the transforms, or filter one of the two."
    )


def _clash(lost: Sequence[tuple[str, str]], winner: str) -> tuple[str, str]:
    """Return the subject and the text of what one server loses to another."""
    remedy = "the smaller server id keeps {}. Give one of the servers a prefix under 'transform'."
    if len(lost) > 1:
        taken = f"{len(lost)} tools are left out: server '{winner}' has their names already, and"
        names = _names([name for _, name in lost])
        return winner, f"{taken} {remedy.format('them')} They are: {names}."
    ((original, name),) = lost
    taken = f"tool {_show(original)} is left out: server '{winner}' has the name '{name}' already,"
    return name, f"{taken} and {remedy.format('it')}"


def _reserved(original: str, name: str) -> str:
    return (
        f"tool {_show(original)} is left out: the name '{name}' is reserved for '{ADMIN_TOOLSET}'."
        " Give the server a prefix under 'transform'."
    )


def _names(names: Sequence[str]) -> str:
    listed = ", ".join(_show(name) for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"{listed} and {more} more" if more > 0 else listed


def _show(name: str) -> str:
    clipped = _clip(name)
    # A name with control characters or quotes must not shape an operator's terminal or log.
    return f"'{clipped}'" if is_valid_name(clipped) else ascii(clipped)


def _clip(name: str) -> str:
    return name if len(name) <= _SHOWN else name[:_SHOWN] + "..."
