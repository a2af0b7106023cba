"""Finds policy rules that name an argument which a tool's schema lacks. Pure.

A rule that cannot be evaluated denies the call, so such a rule may deny every call of the tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.model import ServerSpec
from leaseway.wire.messages.json_schema import CHOICES
from leaseway.wire.text.suggestions import alike

_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_MEMBER: Final = re.compile(r"(?<![\w.])args\s*\.\s*([A-Za-z_]\w*)")
_INDEXED: Final = re.compile(r'(?<![\w.])args\s*\[\s*(?:"(\w+)"|\'(\w+)\')\s*\]')
_GUARD: Final = re.compile(r"\bhas\s*\(\s*args\s*\.\s*([A-Za-z_]\w*)\s*\)")
_MAX_LISTED: Final = 5


def named_arguments(expression: str) -> frozenset[str]:
    """Return the arguments that a rule uses as `args.x` or `args["x"]` without `has(args.x)`."""
    found = {double or single for double, single in _INDEXED.findall(expression)}
    plain = _TEXT.sub('""', expression)
    found.update(_MEMBER.findall(plain))
    return frozenset(found - set(_GUARD.findall(plain)))


def rule_problems(spec: ServerSpec, listing: ServerListing) -> tuple[Problem, ...]:
    """Return a warning for each rule that names an argument which one of its tools lacks."""
    wanting = [
        (number, rule, wanted)
        for number, rule in enumerate(spec.policy.rules, start=1)
        if (wanted := named_arguments(rule.expression))
    ]
    if not wanting:
        return ()
    passing = (tool for tool in listing.tools if tool.name and spec.tools.passes(tool.name))
    arguments = [(tool.name, _properties(tool.definition)) for tool in passing]
    found: list[Problem] = []
    for number, rule, wanted in wanting:
        lacking: dict[str, list[str]] = {}
        known: set[str] = set()
        for tool, taken in arguments:
            if taken is not None and rule.applies_to(tool):
                known |= taken
                for name in wanted - taken:
                    lacking.setdefault(name, []).append(tool)
        found.extend(
            _problem(spec, number, name, tools, known) for name, tools in sorted(lacking.items())
        )
    return tuple(found)


def _problem(
    spec: ServerSpec, number: int, name: str, tools: Sequence[str], known: Iterable[str]
) -> Problem:
    listed = ", ".join(tools[:_MAX_LISTED])
    if len(tools) > _MAX_LISTED:
        listed += f" and {len(tools) - _MAX_LISTED} more"
    near = alike(name, sorted(known))
    hint = f" Did you mean 'args.{near[0]}'?" if near else ""
    message = (
        f"Rule {number} of server {spec.key.server_id} names args.{name}, which the schema of "
        f"{listed} does not have, so the rule may deny every call there.{hint} Write "
        f"has(args.{name}) before it, or name the rule's 'tools'."
    )
    return Problem(
        "server",
        "RULE_NAMES_NO_ARGUMENT",
        message,
        server_id=spec.key.server_id,
        tenant=spec.key.tenant,
        severity="warning",
        subject=f"rule {number}: {name}",
    )


def _properties(definition: bytes) -> set[str] | None:
    """Return the arguments in a tool's schema, or None if it may allow others."""
    schema = json.loads(definition).get("inputSchema")
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return None
    if any(key in schema for key in ("$ref", *CHOICES, "patternProperties")):
        return None
    if schema.get("additionalProperties", False) not in (False, None):
        return None
    return set(schema["properties"])
