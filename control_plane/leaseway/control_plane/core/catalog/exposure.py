"""From the tools and prompts that a server lists to the names that it exposes (design.md).

Filters match original names, transforms produce exposed names, which are altered if models cannot
be given them. Tools and prompts that get no valid name are skipped with a warning. If several
servers expose the same name, the smallest server id gets it, so that the order of files or events
does not matter. Tools and prompts have separate name spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import filterfalse, pairwise, repeat
from typing import Final

from leaseway.control_plane.core.catalog.kinds import TOOLS, ItemKind, NamedKind
from leaseway.control_plane.core.catalog.listing import ListedItem
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.exposed_names import exposed_names
from leaseway.spec.filters.names import NameFilter, spellings
from leaseway.spec.filters.uris import UriFilter
from leaseway.spec.model import ServerSpec
from leaseway.wire.bounds import MAX_DEFINITION, MAX_LISTED, MAX_URI
from leaseway.wire.messages.admin import ADMIN_TOOLSET
from leaseway.wire.messages.portable_json import NotPortable, parse
from leaseway.wire.names import (
    ORIGINAL_NAME_RULE,
    is_valid_name,
    is_valid_original_name,
)
from leaseway.wire.text.suggestions import alike

_LISTED: Final = 20
"""Limit of names in a message, and of separate warnings per reason and server."""
_SHOWN: Final = 80
"""Limit of characters of a name in a message."""


class ExposureWarnings:
    """Collects one server's warnings; those beyond `_LISTED` of a reason become one.

    Servers may list anything, so names in messages are clipped and escaped.
    """

    def __init__(self, server_id: str, tenant: str = "") -> None:
        self._new = partial(
            Problem, scope="server", server_id=server_id, tenant=tenant, severity="warning"
        )
        self._server = f"Server '{server_id}'" + (f" of tenant '{tenant}'" if tenant else "")
        self._found: dict[str, list[tuple[str, str]]] = {}

    def add(self, reason: str, subject: str, message: str) -> None:
        """Add a warning; the message follows the server's name and a colon."""
        self._found.setdefault(reason, []).append((subject, f"{self._server}: {message}"))

    def add_unknown(
        self, reason: str, where: str, name: str, message: str, known: Collection[str]
    ) -> None:
        """Add a warning of a name that nothing has, with the known name that is most like it."""
        is_shown = len(self._found.get(reason, ())) < _LISTED  # finding that one is slow
        near = alike(name, known)[:1] if is_shown else []
        hint = f" Did you mean {shown(near[0])}?" if near else ""
        self.add(reason, f"{where}:{name}", message + hint)

    def all(self) -> tuple[Problem, ...]:
        problems = []
        for reason, found in self._found.items():
            for subject, message in found[:_LISTED]:
                problems.append(self._new(reason=reason, message=message, subject=_clip(subject)))
            rest = [subject for subject, _ in found[_LISTED:]]
            if rest:
                message = f"{self._server}: {reason} for {len(rest)} more: {named(rest)}."
                problems.append(self._new(reason=reason, message=message))
        return tuple(problems)


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun: `1 tool`, `2 tools`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def named(names: Sequence[str]) -> str:
    listed = ", ".join(shown(name) for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"{listed} and {more} more" if more > 0 else listed


def shown(name: str, longest: int = _SHOWN) -> str:
    clipped = _clip(name, longest)
    # Control characters must not reach an operator's terminal or log.
    return f"'{clipped}'" if is_valid_original_name(clipped) else ascii(clipped)


def _clip(name: str, longest: int = _SHOWN) -> str:
    return name if len(name) <= longest else name[:longest] + "..."


_ADVICE: Final = "Ask the server's maintainer to fix it."


@dataclass(frozen=True)
class Exposure:
    """The exposed names of one server's tools or prompts.

    Attributes:
        exposed: (original name, exposed name), sorted by original name; each is valid.
        problems: Warnings about skipped ones.
    """

    exposed: tuple[tuple[str, str], ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class ClashResult:
    """Which server owns each exposed name.

    Attributes:
        owner: From exposed name to (server id, original name).
        skipped: (server id, original name) of tools or prompts that lost their name.
        problems: A warning for each of these, with both servers.
    """

    owner: Mapping[str, tuple[str, str]]
    skipped: frozenset[tuple[str, str]]
    problems: tuple[Problem, ...]


def expose(spec: ServerSpec, originals: Sequence[str], kind: NamedKind = TOOLS) -> Exposure:
    """Return what a server exposes of the tools or prompts that it lists, in any order."""
    problems = ExposureWarnings(spec.key.server_id, spec.key.tenant)
    kept = filtered(unique(originals, kind, problems), kind.rules(spec), kind, problems)
    exposed: list[tuple[str, str]] = []
    taken: dict[str, str] = {}
    usable_names = filter(is_valid_original_name, kept)
    found = exposed_names(usable_names, spec.transforms, kind.reserved)
    # If a transform makes `a.b` to `a_b`, too, the one that needed no other name keeps it.
    for original in (*filter(is_valid_name, kept), *filterfalse(is_valid_name, kept)):
        name = found.get(original, original)
        fault = _name_fault(original, name, taken, kind)
        if fault is None:
            taken[name] = original
            exposed.append((original, name))
        else:
            reason, text = fault
            problems.add(reason, original, f"{kind.noun} {shown(original)} is skipped: {text}")
    return Exposure(tuple(sorted(exposed)), problems.all())


def resolve_clashes(
    exposures: Mapping[str, Sequence[tuple[str, str]]], kind: NamedKind = TOOLS
) -> ClashResult:
    """Assign each exposed name of one kind to one server.

    Args:
        exposures: (original, exposed) pairs by server id. The id `mcp_admin` is the built-in
            toolset and comes before all others.
    """
    owner: dict[str, tuple[str, str]] = {}
    skipped: set[tuple[str, str]] = set()
    problems: list[Problem] = []
    for server_id in sorted(
        exposures, key=lambda server_id: (server_id != ADMIN_TOOLSET, server_id)
    ):
        originals = [original for original, _ in exposures[server_id]]
        names = [name for _, name in exposures[server_id]]
        if (
            owner.keys().isdisjoint(names)
            and (server_id == ADMIN_TOOLSET or kind.reserved.isdisjoint(names))
            and len(set(names)) == len(names)
        ):  # the usual case, without a step for each name
            owner.update(zip(names, zip(repeat(server_id), originals, strict=False), strict=True))
            continue
        clashes: dict[str, list[tuple[str, str]]] = {}
        reserved: list[tuple[str, str]] = []
        for original, name in sorted(exposures[server_id]):
            if name in kind.reserved and server_id != ADMIN_TOOLSET:
                reserved.append((original, name))
            elif name in owner:
                clashes.setdefault(owner[name][0], []).append((original, name))
            else:
                owner[name] = (server_id, original)
                continue
            skipped.add((server_id, original))
        if not clashes and not reserved:
            continue
        warnings = ExposureWarnings(server_id)
        for original, name in reserved:
            warnings.add(kind.name_reserved, name, _reserved(original, name, kind))
        for winner, losers in clashes.items():
            warnings.add(kind.clash, *_clash(losers, winner, kind))
        problems += warnings.all()
    return ClashResult(owner, frozenset(skipped), tuple(problems))


def usable(
    recorded: Sequence[ListedItem], kind: ItemKind, problems: ExposureWarnings
) -> list[ListedItem]:
    """Return the usable items of a list, in its order.

    Items without a name or URI, items larger than a page (1 MiB) and items after the first 10,000
    are skipped with a warning.
    """
    found: list[ListedItem] = []
    nameless: dict[str, int] = {}
    for item in recorded[:MAX_LISTED]:
        if not item.name:
            cause = _unreadable(item, kind)
            nameless[cause] = nameless.get(cause, 0) + 1
        elif fault := _fault(item, kind):
            text = f"{kind.noun} {shown(item.name)} is skipped: {fault}. {_ADVICE}"
            problems.add(kind.malformed, item.name, text)
        else:
            found.append(item)
    for cause, number in nameless.items():
        text = f"{pluralize(number, kind.noun)} skipped: {cause}. {_ADVICE}"
        problems.add(kind.malformed, "", text)
    if len(recorded) > MAX_LISTED:
        count = pluralize(len(recorded) - MAX_LISTED, kind.noun)
        text = f"{count} skipped: the limit is {MAX_LISTED} per server."
        problems.add(kind.too_many, "", text)
    return found


def unique(names: Iterable[str], kind: ItemKind, problems: ExposureWarnings) -> list[str]:
    """Return the distinct names or URIs, sorted; warn of duplicates."""
    ordered = sorted(names)
    for name in sorted({name for name, following in pairwise(ordered) if name == following}):
        text = f"it lists {kind.noun} {shown(name)} more than once"
        problems.add(kind.listed_twice, name, f"{text}; the {kind.noun} is registered once.")
    return sorted(set(ordered))


def passing(rules: NameFilter, kind: ItemKind) -> Callable[[str], bool]:
    """Return the predicate of a filter for names, or for URIs in each of their spellings."""
    if isinstance(kind, NamedKind):
        return rules.passes
    return UriFilter.from_names(rules).allows


def filtered(
    names: Sequence[str], rules: NameFilter, kind: ItemKind, problems: ExposureWarnings
) -> list[str]:
    """Return the names or URIs that pass a filter.

    What a filter leaves out is intended and no problem. There is a warning if it leaves nothing
    though it does not say so, or if it names something that the server does not list: both come
    from a slip of the pen or from a new version of the server.
    """
    allows = passing(rules, kind)
    kept = [name for name in names if allows(name)]  # asked once each: many patterns are slow
    if not rules or not names or not kind.filtered:
        return kept
    if not kept and "*" not in rules.blacklist:
        count = pluralize(len(names), kind.noun)
        text = f"its filters leave out all that it lists, {count}: {named(names)}."
        problems.add(kind.filtered, "", f"{text} Correct them, or write blacklist: ['*'].")
    if isinstance(kind, NamedKind):
        _warn_of_missing(names, rules, kind, problems)
    return kept


def _warn_of_missing(
    names: Sequence[str], rules: NameFilter, kind: NamedKind, problems: ExposureWarnings
) -> None:
    listed = {spelling for name in names for spelling in spellings(name)}
    for where, patterns in (("whitelist", rules.whitelist), ("blacklist", rules.blacklist)):
        for pattern in dict.fromkeys(patterns):
            if "*" not in pattern and pattern not in listed:
                text = f"its {where} names {shown(pattern)}, but it lists no such {kind.noun}."
                problems.add_unknown(kind.filtered, where, pattern, text, names)


def _name_fault(
    original: str, name: str, taken: Mapping[str, str], kind: NamedKind
) -> tuple[str, str] | None:
    """Return the reason and message if a name cannot be exposed, else None."""
    if not is_valid_original_name(original):
        return kind.invalid_name, f"a {kind.noun} name has {ORIGINAL_NAME_RULE}. {_ADVICE}"
    if not name:
        return kind.invalid_name, "its transforms leave nothing of its name. Change the transforms."
    if name in taken:
        text = (
            f"its transforms give it the name '{name}', which {shown(taken[name])} already has."
            " Change the transforms, or filter one of the two."
        )
        return kind.duplicate_name, text
    return None


def _unreadable(item: ListedItem, kind: ItemKind) -> str:
    """Return why a definition has no name."""
    try:
        parse(item.definition)
    except NotPortable as error:
        return f"a definition {error}"
    return f"no object with a text '{kind.member}'"


def _fault(item: ListedItem, kind: ItemKind) -> str:
    """Return why a named definition cannot be used, or an empty text."""
    if len(item.name) > MAX_URI:
        return f"its '{kind.member}' has {len(item.name)} characters, the limit is {MAX_URI}"
    size = len(item.definition)
    if size > MAX_DEFINITION:
        return f"its definition has {size} bytes, the limit is {MAX_DEFINITION}"
    return ""


def _clash(losers: Sequence[tuple[str, str]], winner: str, kind: ItemKind) -> tuple[str, str]:
    """Return the subject and message for the names that one server loses to another."""
    advice = (
        "the smaller server id keeps {}. Qualified names (server:name) still work. Give one of the"
        " servers a prefix under 'transform'."
    )
    if len(losers) > 1:
        count = pluralize(len(losers), kind.noun)
        taken = f"{count} are skipped: server '{winner}' already has their names, and"
        names = named([name for _, name in losers])
        # Not a valid name, as names are subjects of other warnings.
        return f"{winner}:*", f"{taken} {advice.format('them')} They are: {names}."
    ((original, name),) = losers
    taken = f"{kind.noun} {shown(original)} is skipped: server '{winner}' already has the name"
    return name, f"{taken} '{name}', and {advice.format('it')}"


def _reserved(original: str, name: str, kind: ItemKind) -> str:
    return (
        f"{kind.noun} {shown(original)} is skipped: the name '{name}' is reserved for"
        f" '{ADMIN_TOOLSET}'. Give the server a prefix under 'transform'."
    )
