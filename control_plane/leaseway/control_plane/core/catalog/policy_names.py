"""Finds names in a server's policy that are the names of nothing that the server lists. Pure.

A limit, a risk or a rule for such a name holds for nothing, and nobody would notice: the name may
be misspelt, or that after transforms. Patterns with `*` may be meant for tools to come; there is a
warning only if they match nothing but names after transforms.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from leaseway.control_plane.core.catalog.exposure import ExposureWarnings, shown
from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.filters.names import NameFilter, matches, spellings
from leaseway.spec.model import ServerSpec
from leaseway.spec.policy import NO_GRANT, ServerPolicy
from leaseway.wire.text.suggestions import alike

_NAME: Final = r"""(?:"[^"'\\]+"|'[^"'\\]+')"""
_TEXT: Final = re.compile(_NAME)
_COMPARED: Final = re.compile(
    rf"(?<![\w.])tool\s*[=!]=\s*({_NAME})|({_NAME})\s*[=!]=\s*tool(?![\w.])"
)
_STRING: Final = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_IN_LIST: Final = re.compile(rf"(?<![\w.])tool\s+in\s*\[((?:[^\]\"']|{_STRING})*)\]")
_BLACKLIST: Final = "the blacklist"
POLICY_NAMES_NO_TOOL: Final = "POLICY_NAMES_NO_TOOL"

NamedBy = tuple[tuple[str, str], ...]
"""(what names it, the name or pattern) in a policy, without duplicates."""


def names_in(policy: ServerPolicy) -> NamedBy:
    """Return the names and patterns of tools, and of prompts in rules, that a policy has."""
    return tuple(dict.fromkeys(_names_in(policy)))


def _names_in(policy: ServerPolicy) -> Iterator[tuple[str, str]]:
    for pattern, _ in policy.risks:
        yield "'risk'", pattern
    for pattern, _ in policy.quota.tools:
        yield "'quota.tools'", pattern
    for number, rule in enumerate(policy.rules, start=1):
        for name in (*rule.tools, *_compared_tools(rule.expression)):
            if "://" not in name:  # those of resources need not be listed
                yield f"rule {number}", name
    for tenant, grant in (policy.grants or {}).items():
        if grant == NO_GRANT:
            continue
        yield from _names_in_filter(f"the grant of tenant {shown(tenant)}", grant.tools)
        for agent, granted in grant.agents.items():
            if granted:
                whose = f"the grant of agent {shown(agent)} of tenant {shown(tenant)}"
                yield from _names_in_filter(whose, granted)


def _names_in_filter(whose: str, granted: NameFilter) -> Iterator[tuple[str, str]]:
    for pattern in granted.whitelist:
        yield whose, pattern
    for pattern in granted.blacklist:
        yield f"{_BLACKLIST} in {whose}", pattern


def _compared_tools(expression: str) -> list[str]:
    """Return the names with which a rule compares `tool`, as far as its text shows them."""
    found = [part for pair in _COMPARED.findall(expression) for part in pair if part]
    for listed in _IN_LIST.findall(expression):
        found += _TEXT.findall(listed)
    return [text[1:-1] for text in found]


def policy_problems(
    spec: ServerSpec, listing: ServerListing, names: NamedBy, exposed: Mapping[str, str]
) -> tuple[Problem, ...]:
    """Return a warning for each name in a policy of which the server lists nothing.

    Args:
        exposed: The original names of its exposed tools by those after transforms.
    """
    if not names or not listing.tools:
        return ()
    problems = ExposureWarnings(spec.key.server_id, spec.key.tenant)
    tools, prompts = listing.by_name, listing.prompts_by_name
    for where, pattern in names:
        listed = [tools, prompts] if where.startswith("rule ") else [tools]
        if any(_has(known, pattern) for known in listed):
            continue
        if where.startswith(_BLACKLIST) and any(_has(spellings(name), pattern) for name in tools):
            continue
        may_be_uri = where.startswith("rule ") and ":" in pattern
        if may_be_uri and any(one.name == pattern for one in listing.resources):
            continue
        text = f"{where} names {shown(pattern)}, but it lists no such tool, so that holds for none."
        hint = _after_transforms(pattern, exposed)
        known = [name for kind in listed for name in kind]
        if hint:
            problems.add(POLICY_NAMES_NO_TOOL, f"{where}:{pattern}", text + hint)
        elif not ("*" in pattern or (may_be_uri and not alike(pattern, known))):
            problems.add_unknown(POLICY_NAMES_NO_TOOL, where, pattern, text, known)
    return problems.all()


def _has(known: Collection[str], pattern: str) -> bool:
    if "*" not in pattern:
        return pattern in known
    return any(matches(pattern, name) for name in known)


def _after_transforms(pattern: str, exposed: Mapping[str, str]) -> str:
    """Return advice if a name that is not listed is that of a tool after transforms."""
    if "*" in pattern:
        found = next((name for name in exposed if matches(pattern, name)), None)
    else:
        found = pattern if pattern in exposed else None
    if found is None:
        return ""
    return (
        f" {shown(found)} is the name of {shown(exposed[found])} after transforms; write the"
        " server's own names."
    )
