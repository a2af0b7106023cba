"""Readers of what callers may do: `tenants:`, and a server's `risk`, `rate_limit` and `rules`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from leaseway.control_plane.config.schema import filters
from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.schema.tables import (
    Key,
    Keys,
    keyed,
    mapping,
    read_table,
    record,
    schema_of,
    unique_entries,
)
from leaseway.control_plane.config.schema.values import (
    Reader,
    Schema,
    boolean,
    choice,
    integer,
    list_of,
    plain_text,
    size,
    takes,
)
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Table, Tree
from leaseway.spec.name_filters import NO_FILTER, NameFilter
from leaseway.spec.permissions import EVERYTHING, Permissions
from leaseway.spec.policy import RISKS, ArgumentRule, Rate, TenantLimits
from leaseway.spec.rules import RuleNotCompiled, compile_expression
from leaseway.wire.names import is_valid_key

MAX_TENANTS: Final = 10_000
MAX_AGENTS: Final = 1_000
MAX_RULES: Final = 100
TIB: Final = 1 << 40
_LONGEST_RULE: Final = 4_096
_LONGEST_PATH: Final = 1_024
_MOST_PATHS: Final = 100
_MOST_CALLS: Final = 1_000_000_000
_HEAVIEST: Final = 1_000
_RATE: Final = re.compile(r"(\d{1,9})\s*(/|per)\s*(s|second|m|minute|h|hour|d|day)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


@dataclass(frozen=True)
class GrantConfig:
    """What is granted of one server.

    Attributes:
        tools: Which tools, by original names.
        permissions: What its calls may do, within the server's own permissions.
    """

    tools: NameFilter = NO_FILTER
    permissions: Permissions = EVERYTHING


_ALL_OF_IT: Final = GrantConfig()


@dataclass(frozen=True)
class TenantConfig:
    """What `tenants:` says of one tenant, or of one agent of it.

    Attributes:
        servers: The servers that are granted, and what of each; None: all that there are.
        limits: How much it may use.
        agents: Agents with grants of their own.
        secrets: What references of the tenant's own layer may name: patterns over names and paths.
    """

    servers: Mapping[str, GrantConfig] | None = None
    limits: TenantLimits | None = None
    agents: Mapping[str, TenantConfig] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()


Tenants = Mapping[str, TenantConfig]


@takes({"type": "string", "pattern": f"^{_RATE.pattern}$"})
def rate(node: Tree, where: Where) -> Rate | None:
    """Read a rate such as `60/m`."""
    text = node.value if isinstance(node, Leaf) else None
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is not None and int(match[1]):
        return Rate(int(match[1]), _SECONDS[match[3][0]])
    message = f"{shown(where.key)} must be calls in a time, such as 10/s, 60/m or 1000/h."
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


@takes({"type": "object", "additionalProperties": {"enum": list(RISKS)}})
def risks(node: Tree, where: Where) -> tuple[tuple[str, str], ...] | None:
    """Read which tools have which risk: patterns over original names, the first match counts."""
    table = mapping(node, where)
    if table is None:
        return None
    read = choice(*RISKS)
    found = []
    for entry in unique_entries(table, where):
        place = where.child(entry.name, entry.value.at)
        fault = filters.name_pattern_fault(entry.name)
        if fault:
            message = f"{shown(entry.name)} can match no tool: {fault}."
            place.error(entry.at, IssueReason.BAD_VALUE, message)
        risk = read(entry.value, place)
        if risk is not None and not fault:
            found.append((entry.name, risk))
    return tuple(found)


def _printable(text: str) -> str:
    """Return what the library says of an expression, whose characters it repeats."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


_RULE_TEXT: Final = plain_text(longest=_LONGEST_RULE, empty=False)


@takes(_RULE_TEXT.schema)
def _expression(node: Tree, where: Where) -> str | None:
    text = _RULE_TEXT(node, where)
    if text is None:
        return None
    text = text.strip()
    for prefix in ("deny if ", "deny "):
        text = text.removeprefix(prefix).strip()
    try:
        compile_expression(text)
    except RuleNotCompiled as error:
        message = f"{shown(where.key)} is no rule: {_printable(str(error))}."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    return text


_PATTERN: Final = plain_text(longest=filters.MAX_PATTERN, empty=False)


@takes(_PATTERN.schema)
def _pattern(node: Tree, where: Where) -> str | None:
    text = _PATTERN(node, where)
    fault = filters.name_pattern_fault(text) if text is not None else ""
    if fault:
        message = f"{shown(where.key)} can match no tool: {fault}."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    return text


_RULE_KEYS: Final = keyed(
    Key("deny", _expression, "expression"),
    Key("tools", list_of(_pattern, filters.MAX_PATTERNS), "tools"),
)


@takes({"anyOf": [_expression.schema, schema_of(_RULE_KEYS, required=("deny",))]})
def _rule(node: Tree, where: Where) -> ArgumentRule | None:
    if isinstance(node, Leaf):
        expression = _expression(node, where)
        return None if expression is None else ArgumentRule(expression)
    table = mapping(node, where)
    if table is None:
        return None
    values = read_table(unique_entries(table, where), _RULE_KEYS, where, "a rule")
    if "expression" not in values:
        if not any(entry.name == "deny" for entry in table.entries):
            where.missing(node.at, "deny", f"{shown(where.key)} needs 'deny', an expression.")
        return None
    return ArgumentRule(**values)


rules: Final = list_of(_rule, MAX_RULES)
"""Reads which calls are refused for their arguments."""

_PATH: Final = plain_text(longest=_LONGEST_PATH, empty=False)


@takes(_PATH.schema)
def _path(node: Tree, where: Where) -> str | None:
    text = _PATH(node, where)
    if text is None:
        return None
    fault = _path_fault(text)
    if fault:
        message = f"{shown(where.key)} can't be a permitted or denied path: {fault}."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    return text


def _path_fault(text: str) -> str:
    parts = text.split("/")
    if ".." in parts or text.startswith("~"):
        return "write it without '..' and '~'"
    if "*" in text:
        return "it is no pattern; name the folder"
    if "\\" in text or not text.isprintable():
        return "it has a backslash or a control character"
    return ""


_PERMISSIONS: Final = record(
    keyed(
        Key("read", boolean, "read"),
        Key("write", boolean, "write"),
        Key("allowed_paths", list_of(_path, _MOST_PATHS), "allowed_paths"),
        Key("denied_paths", list_of(_path, _MOST_PATHS), "denied_paths"),
    ),
    Permissions,
    "'permissions'",
)


@takes(_PERMISSIONS.schema)
def permissions(node: Tree, where: Where) -> Permissions | None:
    """Read what tools may do, and which paths they may name."""
    found = _PERMISSIONS(node, where)
    if found is not None and found != EVERYTHING:
        try:
            compile_expression("true")
        except RuleNotCompiled as error:
            where.error(node.at, IssueReason.BAD_VALUE, f"{shown(where.key)}: {error}.")
            return None
    return found


_GRANTED_IDS: Final = list_of(plain_text(longest=64, empty=False), 10_000)


def _granted(keys: Keys) -> Reader[Mapping[str, GrantConfig]]:
    """Return a reader of granted servers: a list of ids, or a mapping of ids to what is granted."""
    some: Schema = {"anyOf": [{"type": "null"}, boolean.schema, schema_of(keys)]}

    @takes(
        {
            "description": "The servers that are granted: their ids, or what is granted of each.",
            "anyOf": [_GRANTED_IDS.schema, {"type": "object", "additionalProperties": some}],
        }
    )
    def read(node: Tree, where: Where) -> Mapping[str, GrantConfig] | None:
        if isinstance(node, Leaf):
            message = f"{shown(where.key)} must be a list of server ids, or a mapping of them."
            where.error(node.at, IssueReason.WRONG_TYPE, message)
            return None
        if not isinstance(node, Table):
            ids = _GRANTED_IDS(node, where)
            return None if ids is None else dict.fromkeys(ids, _ALL_OF_IT)
        found: dict[str, GrantConfig] = {}
        for entry in unique_entries(node, where):
            place = where.child(entry.name, entry.value.at)
            whole = isinstance(entry.value, Leaf) and entry.value.value in (None, True)
            inner = None if whole else mapping(entry.value, place)
            values: dict[str, Any] = {}
            if inner is not None:
                values = read_table(unique_entries(inner, place), keys, place, "a grant")
            found[entry.name] = GrantConfig(**values)
        return found

    return read


def _named(keys: Keys, most: int, what: str) -> Reader[Tenants]:
    """Return a reader of a mapping of names to what is said of each."""

    @takes({"type": "object", "maxProperties": most, "additionalProperties": schema_of(keys)})
    def read(node: Tree, where: Where) -> Tenants | None:
        table = mapping(node, where)
        if table is None:
            return None
        entries = unique_entries(table, where)
        if len(entries) > most:
            message = f"{shown(where.key)} has {len(entries)} entries; {most} are allowed."
            where.error(node.at, IssueReason.TOO_LARGE, message)
            return None
        found = {}
        for entry in entries:
            place = where.child(entry.name, entry.value.at)
            if not entry.name or not is_valid_key(entry.name):
                message = f"{shown(entry.name)} can't be the name of {what}."
                place.error(entry.at, IssueReason.BAD_VALUE, message)
                continue
            inner = mapping(entry.value, place)
            if inner is not None:
                values = read_table(unique_entries(inner, place), keys, place, what)
                found[entry.name] = TenantConfig(**values)
        return found

    return read


_TOOLS: Final = Key("tools", filters.tools, "tools")
_AGENTS: Final = _named(
    keyed(Key("servers", _granted(keyed(_TOOLS)), "servers")), MAX_AGENTS, "an agent"
)
_LIMITS: Final = record(
    keyed(
        Key("calls", rate, "calls"),
        Key("concurrent", integer(1, _MOST_CALLS), "concurrent"),
        Key("leases", integer(1, _MOST_CALLS), "leases"),
        Key("artifact_bytes", size(1, TIB), "artifact_bytes"),
        Key("weight", integer(1, _HEAVIEST), "weight"),
    ),
    TenantLimits,
    "'limits' of a tenant",
)

tenants: Final = _named(
    keyed(
        Key(
            "servers",
            _granted(keyed(_TOOLS, Key("permissions", permissions, "permissions"))),
            "servers",
        ),
        Key("limits", _LIMITS, "limits"),
        Key(
            "secrets",
            list_of(plain_text(longest=4_096, empty=False), 1_000),
            "secrets",
            about="What references of the tenant's own layer may name: acme_*, a path.",
        ),
        Key("agents", _AGENTS, "agents"),
    ),
    MAX_TENANTS,
    "a tenant",
)
"""Reads `tenants:`; a mistake anywhere in it refuses the whole file."""
