"""Readers of policy: `tenants:`, and a server's `risk`, `rate_limit`, `quota`, `rules` and more."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from leaseway.control_plane.config.schema import filters
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.tables import by_name, entries_of, record_of
from leaseway.control_plane.config.schema.values import (
    BadValue,
    Reader,
    Schema,
    boolean,
    checked,
    choice,
    list_of,
    plain_text,
    reader,
)
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Table, Tree
from leaseway.spec.filters.names import FILTER_KEYS, NO_FILTER, NameFilter, breadth
from leaseway.spec.keys import Key, ListOf, OwnReader, Text, keys_of, setting
from leaseway.spec.policy import (
    EVERYTHING,
    OTHER_TENANTS,
    RISKS,
    ArgumentRule,
    CallLimits,
    Permissions,
    Quota,
    Rate,
    TenantLimits,
)
from leaseway.spec.rules.expressions import RuleNotCompiled, RulesNotInstalled, compile_expression
from leaseway.wire.names import KEY_RULE, TENANT_RULE, is_valid_key, is_valid_tenant

MAX_TENANTS: Final = 10_000
MAX_AGENTS: Final = 1_000
MAX_RULES: Final = 100
_MAX_RULE_LENGTH: Final = 4_096
_MAX_PATH_LENGTH: Final = 1_024
_MAX_PATHS: Final = 100
_RATE: Final = re.compile(r"(\d{1,9})\s*(/|per)\s*(s|second|m|minute|h|hour|d|day)")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|file:", re.IGNORECASE)
_NOT_RESOLVED: Final = re.compile(r"(?:^|/)\$\{?[A-Za-z_]\w*\}?(?:/|$)|%[0-9A-Fa-f]{2}|%\w+%")
"""Variables and percent-encoding."""
_T = TypeVar("_T")
_NO_MORE: Final[Mapping[str, Reader[Any]]] = {}
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


Holder = Literal["a tenant", "an agent"]
"""Who has settings in `tenants:`; an agent's are fewer."""
TENANT: Final = "a tenant"
AGENT: Final = "an agent"


@dataclass(frozen=True)
class GrantConfig:
    """The grant of one server: original tool names, and permissions within the server's own."""

    tools: NameFilter = setting(
        NO_FILTER, Key(OwnReader(), "The granted tools, by original name.", inside=FILTER_KEYS)
    )
    permissions: Permissions = setting(
        EVERYTHING,
        Key(
            OwnReader(),
            "What calls may do, within the server's own permissions.",
            only=(TENANT,),
            inside=tuple(keys_of(Permissions)),
        ),
    )


_WHOLE_SERVER: Final = GrantConfig()


@dataclass(frozen=True)
class TenantConfig:
    """The settings of one tenant in `tenants:`, or of one of its agents.

    Its keys say what each field means; None as `servers` grants all servers.
    """

    servers: Mapping[str, GrantConfig] | None = setting(
        None,
        Key(
            OwnReader(),
            "The servers that are granted: their ids, or what is granted of each.",
            default="all",
            inside=tuple(keys_of(GrantConfig)),
        ),
    )
    limits: TenantLimits | None = setting(
        None,
        Key(
            OwnReader(),
            "The tenant's limits: see [identity](identity.md#limits).",
            default="unlimited",
            only=(TENANT,),
            inside=tuple(keys_of(TenantLimits)),
        ),
    )
    agent_limits: CallLimits | None = setting(
        None,
        Key(
            OwnReader(),
            "The agent's limits of calls, besides those of its tenant.",
            name="limits",
            default="unlimited",
            only=(AGENT,),
            inside=tuple(keys_of(CallLimits)),
        ),
    )
    secrets: tuple[str, ...] = setting(
        (),
        Key(
            ListOf(Text(4_096, empty=False), 1_000),
            "Names and paths that references in the tenant's layer may use: acme_*, a path.",
            only=(TENANT,),
        ),
    )
    agents: Mapping[str, TenantConfig] = setting(
        {}, Key(OwnReader(), "Agents with their own grants, by name.", only=(TENANT,))
    )


Tenants = Mapping[str, TenantConfig]


@reader({"type": "string", "pattern": f"^{_RATE.pattern}$"})
def rate(node: Tree, where: Where) -> Rate:
    """Read a rate such as `60/m`."""
    text = node.value if isinstance(node, Leaf) else None
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None or not int(match[1]):
        raise BadValue(
            f"{quoted(where.key)} must be calls in a time, such as 10/s, 60/m or 1000/h."
        )
    return Rate(int(match[1]), _SECONDS[match[3][0]])


_RISK: Final = choice(*RISKS)


def _tools_fault(pattern: str) -> str | None:
    if not pattern:
        return "can match no tool: it is empty; write '*' for every tool"
    fault = filters.name_pattern_fault(pattern)
    return fault and f"can match no tool: {fault}"


def _by_pattern(value: Reader[_T]) -> Reader[tuple[tuple[str, _T], ...]]:
    """Return a reader of values by patterns of original names, the narrowest pattern first."""
    by_pattern = by_name(value, filters.MAX_PATTERNS, _tools_fault)

    @reader(by_pattern.schema)
    def read(node: Tree, where: Where) -> tuple[tuple[str, _T], ...]:
        values = by_pattern.read(node, where)
        # Helm, `kubectl apply` and `yaml.safe_dump` sort the keys of objects, so their order in
        # the file must not matter.
        return tuple((name, values[name]) for name in sorted(values, key=breadth))

    return read


risks: Final = _by_pattern(_RISK)
"""Reads the risk of tools."""

_RATES: Final = {"calls": rate}
_CALL_LIMITS: Final = record_of(keys_of(CallLimits), CallLimits, "limits of calls", _RATES)
quota: Final = record_of(
    keys_of(Quota), Quota, "'quota'", {**_RATES, "tools": _by_pattern(_CALL_LIMITS)}
)
"""Reads the limits of all callers of a server together."""


def _printable(text: str) -> str:
    """Return a message of the rules' library, which repeats characters of the expression."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


_RULE_TEXT: Final = plain_text(longest=_MAX_RULE_LENGTH, empty=False)


@reader(_RULE_TEXT.schema)
def _expression(node: Tree, where: Where) -> str:
    text = _RULE_TEXT.read(node, where).strip()
    for prefix in ("deny if ", "deny "):
        text = text.removeprefix(prefix).strip()
    try:
        compile_expression(text)
    except RulesNotInstalled as error:
        raise BadValue(
            f"{quoted(where.key)} cannot be checked: {error}. Install it for control planes and "
            "workers."
        ) from None
    except RuleNotCompiled as error:
        raise BadValue(f"{quoted(where.key)} is not a rule: {_printable(str(error))}.") from None
    return text


def _pattern_fault(pattern: str) -> str | None:
    if ":" in pattern:
        return None  # of URIs, which may contain any character
    fault = filters.name_pattern_fault(pattern)
    return f"can match no tool, prompt or URI: {fault}." if fault else None


_PATTERN: Final = checked(plain_text(longest=filters.MAX_PATTERN, empty=False), _pattern_fault)
_RULE: Final = record_of(
    keys_of(ArgumentRule),
    ArgumentRule,
    "a rule",
    {"deny": _expression, "tools": list_of(_PATTERN, filters.MAX_PATTERNS)},
)


@reader({"anyOf": [_expression.schema, _RULE.schema]})
def _rule(node: Tree, where: Where) -> ArgumentRule:
    if isinstance(node, Leaf):
        return ArgumentRule(_expression.read(node, where))
    return _RULE.read(node, where)


rules: Final = list_of(_rule, MAX_RULES)
"""Reads the rules that deny calls because of their arguments."""


def _path_fault(path: str) -> str | None:
    parts = path.split("/")
    if ".." in parts or path.startswith("~"):
        fault = "write it without '..' and '~'"
    elif "*" in path:
        fault = "patterns are not supported; name the folder"
    elif "\\" in path or not path.isprintable():
        fault = "it has a backslash or a control character"
    elif path != path.strip():
        fault = "it begins or ends with a space"
    elif _ADDRESS.match(path):
        fault = "write the path itself, without a scheme such as 'file:'"
    elif _NOT_RESOLVED.search(path):
        fault = "write the path itself; variables and percent-encoding are not resolved"
    else:
        return None
    return f"can't be a permitted or denied path: {fault}."


_PATH: Final = checked(plain_text(longest=_MAX_PATH_LENGTH, empty=False), _path_fault)
_PATHS: Final = list_of(_PATH, _MAX_PATHS)

permissions: Final = record_of(
    keys_of(Permissions),
    Permissions,
    "'permissions'",
    {"allowed_paths": _PATHS, "denied_paths": _PATHS},
)
"""Reads what tools may do, and which paths they may name."""


_GRANTED_IDS: Final = list_of(plain_text(longest=64, empty=False), 10_000)


def _granted(holder: Holder) -> Reader[Mapping[str, GrantConfig]]:
    """Return a reader of granted servers: a list of ids, or a mapping of ids to grants."""
    readers = {"tools": filters.tools, "permissions": permissions}
    grant = record_of(keys_of(GrantConfig), GrantConfig, "a grant", readers, form=holder)
    any_grant: Schema = {"anyOf": [{"type": "null"}, boolean.schema, grant.schema]}

    @reader({"anyOf": [_GRANTED_IDS.schema, {"type": "object", "additionalProperties": any_grant}]})
    def read(node: Tree, where: Where) -> Mapping[str, GrantConfig]:
        if isinstance(node, Leaf):
            raise BadValue(
                f"{quoted(where.key)} must be a list of server ids, or a mapping of them.",
                IssueReason.WRONG_TYPE,
            )
        if not isinstance(node, Table):
            return dict.fromkeys(_GRANTED_IDS.read(node, where), _WHOLE_SERVER)
        grants: dict[str, GrantConfig] = {}
        for entry in entries_of(node, where):
            place = where.child(entry)
            is_whole = isinstance(entry.value, Leaf) and entry.value.value in (None, True)
            granted = _WHOLE_SERVER if is_whole else grant(entry.value, place)
            if granted is not None:
                grants[entry.name] = granted
        return grants

    return read


def _tenant_fault(name: str) -> str | None:
    if name == OTHER_TENANTS or is_valid_tenant(name):
        return None
    return f"can't be the name of a tenant: it has {TENANT_RULE}"


def _agent_fault(name: str) -> str | None:
    if "*" in name:
        return (
            "can't be the name of an agent: there are no patterns of agents. An agent without an"
            " entry has the grants of its tenant; restrict those"
        )
    if not name:
        return "can't be the name of an agent: it is empty"
    return None if is_valid_key(name) else f"can't be the name of an agent: it has {KEY_RULE}"


def _named(
    holder: Holder,
    limit: int,
    fault_of: Callable[[str], str | None],
    more: Mapping[str, Reader[Any]] = _NO_MORE,
) -> Reader[Tenants]:
    """Return a reader of a mapping of names to the settings of tenants or agents.

    Args:
        limit: How many there may be.
        fault_of: Returns why a text can't be the name of one, as `by_name` wants it.
        more: The readers of further keys.
    """
    readers = {"servers": _granted(holder), **more}
    settings = record_of(keys_of(TenantConfig), TenantConfig, holder, readers, form=holder)
    return by_name(settings, limit, fault_of)


_AGENTS: Final = _named(AGENT, MAX_AGENTS, _agent_fault, {"limits": _CALL_LIMITS})
_LIMITS: Final = record_of(keys_of(TenantLimits), TenantLimits, "'limits' of a tenant", _RATES)

tenants: Final = _named(TENANT, MAX_TENANTS, _tenant_fault, {"limits": _LIMITS, "agents": _AGENTS})
"""Reads `tenants:`; a mistake in it rejects the whole file."""
