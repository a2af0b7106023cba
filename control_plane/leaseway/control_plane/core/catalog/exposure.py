"""From the tools and prompts that a server lists to the names that it exposes (DESIGN §2).

Filters look at original names, transforms make exposed ones, and neither ever mends a name: what
has a name that breaks the rule is left out with a problem (DESIGN §§2, 4). Between servers a name
belongs to the smallest server id, so that neither the order in the file nor the order of events
matters. Tools and prompts follow the same rules, each kind in a name space of its own.

Warnings about what of a server's listing is left out, in words that stay short.

Servers may list anything: names are clipped and escaped, and beyond 20 of one reason they share
a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from leaseway.control_plane.core.catalog.kinds import TOOLS, Kind, NamedKind
from leaseway.control_plane.core.catalog.listing import Recorded
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.model import ServerSpec, Transform
from leaseway.spec.name_filters import NameFilter
from leaseway.spec.uri_filters import UriFilter
from leaseway.wire.bounds import MAX_DEFINITION, MAX_LISTED, MAX_URI
from leaseway.wire.messages.admin import ADMIN_TOOLSET
from leaseway.wire.names import is_valid_name

_LISTED: Final = 20
"""Names that a message lists, and problems of one reason that a server has one by one."""
_SHOWN: Final = 80
"""Characters of a name that a message shows."""


class ExposureWarnings:
    """Collects one server's warnings; beyond `_LISTED` of a reason they become one."""

    def __init__(self, server_id: str, tenant: str = "") -> None:
        self._new = partial(
            Problem, scope="server", server_id=server_id, tenant=tenant, severity="warning"
        )
        self._server = f"Server '{server_id}'" + (f" of tenant '{tenant}'" if tenant else "")
        self._found: dict[str, list[tuple[str, str]]] = {}

    def add(self, reason: str, subject: str, message: str) -> None:
        """Note one thing; the message goes on after the server's name and a colon."""
        self._found.setdefault(reason, []).append((subject, f"{self._server}: {message}"))

    def all(self) -> tuple[Problem, ...]:
        return tuple(self._each())

    def _each(self) -> Iterator[Problem]:
        for reason, found in self._found.items():
            for subject, message in found[:_LISTED]:
                yield self._new(reason=reason, message=message, subject=_clip(subject))
            rest = [subject for subject, _ in found[_LISTED:]]
            if rest:
                message = f"{self._server}: {reason} holds for {len(rest)} more: {named(rest)}."
                yield self._new(reason=reason, message=message)


def count_of(count: int, noun: str) -> str:
    """Return a number of things: `1 tool`, `2 tools`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def named(names: Sequence[str]) -> str:
    listed = ", ".join(shown(name) for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"{listed} and {more} more" if more > 0 else listed


def shown(name: str, longest: int = _SHOWN) -> str:
    clipped = _clip(name, longest)
    # A name with control characters or quotes must not shape an operator's terminal or log.
    return f"'{clipped}'" if is_valid_name(clipped) else ascii(clipped)


def _clip(name: str, longest: int = _SHOWN) -> str:
    return name if len(name) <= longest else name[:longest] + "..."


_MEND: Final = "Ask the server's maintainer to mend it."
_RULE: Final = "a {} name has 1 to 64 characters of a-z, A-Z, 0-9, '_' and '-'"


@dataclass(frozen=True)
class Exposure:
    """What one server's list of tools or prompts becomes.

    Attributes:
        exposed: (original name, exposed name), sorted by original name; both are valid.
        problems: Warnings about what was left out.
    """

    exposed: tuple[tuple[str, str], ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class ClashResult:
    """Who has which name among all servers.

    Attributes:
        owner: From exposed name to (server id, original name).
        skipped: (server id, original name) of what lost its name and doesn't exist.
        problems: A warning for each that is skipped, naming both servers.
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


def expose(spec: ServerSpec, originals: Sequence[str], kind: NamedKind = TOOLS) -> Exposure:
    """Derive what a server exposes from the names of the tools or prompts that it lists.

    The order of `originals` does not matter.
    """
    problems = ExposureWarnings(spec.key.server_id, spec.key.tenant)
    kept = filtered(unique(originals, kind, problems), kind.rules(spec), kind, problems)
    exposed: list[tuple[str, str]] = []
    taken: dict[str, str] = {}
    for original in kept:
        name = transformed(original, spec.transforms)
        fault = _name_fault(original, name, taken, kind)
        if fault is None:
            taken[name] = original
            exposed.append((original, name))
        else:
            reason, text = fault
            problems.add(reason, original, f"{kind.noun} {shown(original)} is left out: {text}")
    return Exposure(tuple(exposed), problems.all())


def resolve_clashes(
    exposures: Mapping[str, Sequence[tuple[str, str]]], kind: NamedKind = TOOLS
) -> ClashResult:
    """Give each exposed name of one kind to one server.

    Args:
        exposures: By server id, the (original, exposed) pairs in force. The id `mcp_admin`
            stands for Leaseway's own toolset and comes before all others.
        kind: What they are names of.
    """
    owner: dict[str, tuple[str, str]] = {}
    skipped: set[tuple[str, str]] = set()
    problems: list[Problem] = []
    for server_id in sorted(exposures, key=lambda each: (each != ADMIN_TOOLSET, each)):
        lost = ExposureWarnings(server_id)
        clashes: dict[str, list[tuple[str, str]]] = {}
        for original, name in sorted(exposures[server_id]):
            if name in kind.reserved and server_id != ADMIN_TOOLSET:
                lost.add(kind.name_reserved, name, _reserved(original, name, kind))
            elif name in owner:
                clashes.setdefault(owner[name][0], []).append((original, name))
            else:
                owner[name] = (server_id, original)
                continue
            skipped.add((server_id, original))
        for winner, losers in clashes.items():
            lost.add(kind.clash, *_clash(losers, winner, kind))
        problems += lost.all()
    return ClashResult(owner, frozenset(skipped), tuple(problems))


def usable(recorded: Sequence[Recorded], kind: Kind, problems: ExposureWarnings) -> list[Recorded]:
    """Return what of a list can be used at all, in its order.

    Left out with a problem is what has no name or URI, what is larger than a page of a list
    (1 MiB), and what comes after the first 10,000.
    """
    found, nameless = [], 0
    for item in recorded[:MAX_LISTED]:
        if not item.name:
            nameless += 1
        elif fault := _fault(item, kind):
            text = f"{kind.noun} {shown(item.name)} is left out: {fault}. {_MEND}"
            problems.add(kind.malformed, item.name, text)
        else:
            found.append(item)
    if nameless:
        text = f"{count_of(nameless, kind.noun)} left out: no object with the text '{kind.member}'."
        problems.add(kind.malformed, "", f"{text} {_MEND}")
    if len(recorded) > MAX_LISTED:
        count = count_of(len(recorded) - MAX_LISTED, kind.noun)
        text = f"{count} left out: at most {MAX_LISTED} of a server are taken."
        problems.add(kind.too_many, "", text)
    return found


def unique(names: Iterable[str], kind: Kind, problems: ExposureWarnings) -> list[str]:
    """Return names or URIs once each, sorted; one that comes twice is a problem."""
    ordered = sorted(names)
    for name in sorted({one for one, following in pairwise(ordered) if one == following}):
        what = f"it lists {kind.noun} {shown(name)} more than once"
        problems.add(kind.listed_twice, name, f"{what}; the {kind.noun} is registered once.")
    return sorted(set(ordered))


def passing(rules: NameFilter, kind: Kind) -> Callable[[str], bool]:
    """Return what says whether a filter lets a name pass, or a URI in each of its spellings."""
    if isinstance(kind, NamedKind):
        return rules.passes
    return UriFilter.of(rules).allows


def filtered(
    names: Sequence[str], rules: NameFilter, kind: Kind, problems: ExposureWarnings
) -> list[str]:
    """Return which names or URIs a filter lets pass; what it holds back is one problem."""
    kept: list[str] = []
    out: list[str] = []
    allows = passing(rules, kind)
    for name in names:
        (kept if allows(name) else out).append(name)
    if out and rules.also is not None:
        rule, text = "narrowed", "the filters of two layers do not both let them pass"
    elif out and rules.blacklist:
        rule, text = "blacklist", "its blacklist matches"
        if rules.whitelist:
            text += " and its whitelist does not"
    else:
        rule, text = "whitelist", "no pattern of its whitelist matches"
    if out:
        count = count_of(len(out), kind.noun)
        problems.add(kind.filtered, rule, f"{count} not registered, {text}: {named(out)}.")
    return kept


def _name_fault(
    original: str, name: str, taken: Mapping[str, str], kind: NamedKind
) -> tuple[str, str] | None:
    """Return the reason and the text of why a name cannot be exposed, or None."""
    if not is_valid_name(original):
        return kind.invalid_name, f"{_RULE.format(kind.noun)}."
    if not is_valid_name(name):
        rule = _RULE.format(kind.noun)
        text = f"its transforms make {shown(name)} of it, but {rule}. Change the transforms."
        return kind.invalid_name, text
    if name in taken:
        text = f"its transforms give it the name '{name}', which {shown(taken[name])} has already."
        remedy = "Change the transforms, or filter one of the two."
        return kind.duplicate_name, f"{text} {remedy}"
    return None


def _fault(item: Recorded, kind: Kind) -> str:
    """Return why a definition with a name cannot be used, or an empty text."""
    if len(item.name) > MAX_URI:
        return f"its '{kind.member}' has {len(item.name)} characters, at most {MAX_URI} are taken"
    size = len(item.definition)
    if size > MAX_DEFINITION:
        return f"its definition has {size} bytes, at most {MAX_DEFINITION} are taken"
    return ""


def _clash(lost: Sequence[tuple[str, str]], winner: str, kind: Kind) -> tuple[str, str]:
    """Return the subject and the text of what one server loses to another."""
    remedy = (
        "the smaller server id keeps {}. Qualified names (server:name) still lead here. Give one of"
        " the servers a prefix under 'transform'."
    )
    if len(lost) > 1:
        count = count_of(len(lost), kind.noun)
        taken = f"{count} are left out: server '{winner}' has their names already, and"
        names = named([name for _, name in lost])
        # No name of a tool or prompt, for each of those may be a subject, too.
        return f"{winner}:*", f"{taken} {remedy.format('them')} They are: {names}."
    ((original, name),) = lost
    what = f"{kind.noun} {shown(original)} is left out:"
    taken = f"{what} server '{winner}' has the name '{name}' already,"
    return name, f"{taken} and {remedy.format('it')}"


def _reserved(original: str, name: str, kind: Kind) -> str:
    return (
        f"{kind.noun} {shown(original)} is left out: the name '{name}' is reserved for"
        f" '{ADMIN_TOOLSET}'. Give the server a prefix under 'transform'."
    )
