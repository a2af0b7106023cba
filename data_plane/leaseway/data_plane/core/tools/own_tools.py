"""The tools in which one instance differs from what the registry has recorded. Pure.

A server may add, remove or change tools within a session. What the instance of a lease lists is the
contract of this lease; filters, transforms and grants apply to it as to the recorded list
(design.md#tools-of-a-lease).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from leaseway.data_plane.core.tools.toolset import CompiledToolset, ExposedTool, compile_toolset
from leaseway.spec.contracts import same_contract
from leaseway.spec.exposed_names import exposed_names
from leaseway.spec.model import NameRules
from leaseway.wire import bounds
from leaseway.wire.listing.definitions import is_task_only
from leaseway.wire.messages.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS
from leaseway.wire.names import ORIGINAL_NAME_RULE, is_valid_name, is_valid_original_name

_RESERVED: Final = frozenset({ADMIN_TOOLSET, *TOOL_DEFINITIONS})
OWN_LABEL: Final = "(of one lease)"
"""How metrics name the tools that instances add: a server may make new names for ever."""
_SHOWN: Final = 80
"""Characters of a name in a message."""


@dataclass(frozen=True)
class OwnTools:
    """The tools in which an instance differs.

    Attributes:
        toolset: The tools that the calls of its lease are checked by.
        changed: The original names of exposed tools that it adds or defines otherwise, sorted.
        absent: The original names of recorded exposed tools that it does not list.
        skipped: A part of a sentence for each tool that it adds and that is not exposed.
        digest: Identifies the difference; empty if callers see none.
        size: The bytes of the changed definitions.
    """

    toolset: CompiledToolset
    changed: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    digest: str = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        plans = [self.toolset.tools[name] for name in self.changed]
        object.__setattr__(self, "size", sum(len(plan.definition) for plan in plans))
        object.__setattr__(self, "digest", self._digest() if plans or self.absent else "")

    def digest_of(self, changed: Collection[str], absent: Collection[str]) -> str:
        """Identify what a caller sees who may know of some tools only; empty if it is nothing."""
        if len(changed) == len(self.changed) and len(absent) == len(self.absent):
            return self.digest
        if not changed and not absent:
            return ""
        seen = repr((self.digest, *sorted(changed), "", *sorted(absent)))
        return hashlib.sha256(seen.encode()).hexdigest()[:32]

    def _digest(self) -> str:
        state = hashlib.sha256()
        for name in self.changed:
            plan = self.toolset.tools[name]
            for part in (plan.name.encode(), plan.definition):
                state.update(len(part).to_bytes(8, "big"))
                state.update(part)
        state.update(repr(self.absent).encode())
        return state.hexdigest()[:32]


def changed_tools(common: CompiledToolset, listed: Mapping[str, bytes]) -> list[str]:
    """Return the original names of tools that are not recorded so, sorted.

    Only what calls depend on counts, as for `differing_tools`.
    """
    contract = common.contract
    return sorted(
        name
        for name, definition in listed.items()
        if name not in contract or not same_contract(contract[name], definition)
    )


def own_tools(
    common: CompiledToolset,
    listed: Mapping[str, bytes],
    unoffered: frozenset[str] = frozenset(),
    previous: CompiledToolset | None = None,
) -> OwnTools | None:
    """Return the tools in which an instance differs; None if it does not, or has no rules of names.

    Args:
        common: The toolset of all.
        listed: The instance's own definitions by original name.
        unoffered: Recorded tools that it has never listed to the client for which it was started;
            they keep their plans, so that their calls are told so.
        previous: An earlier toolset of the instance, whose compiled plans are used again.
    """
    rules = common.lease_rules
    if rules is None:
        return None
    changed = changed_tools(common, listed)
    if not changed and all(name in listed for name in common.tools):
        return None
    naming = _Naming(common, listed, rules, changed)
    exposed = [entry for name in changed if (entry := naming.expose(name)) is not None]
    lost = frozenset(changed)
    same = [name for name in common.tools if name in listed and name not in lost]
    kept = [*same, *(name for name in common.tools if name in unoffered and name not in listed)]
    recorded = [common.contract[name] for name in kept]
    plans = dict(common.tools)
    if previous is not None:
        plans |= {name: plan for name, plan in previous.tools.items() if name in lost}
    toolset = compile_toolset(
        [*recorded, *(listed[entry.original_name] for entry in exposed)],
        [*(_as_exposed(common, name) for name in kept), *exposed],
        common.protocol_version,
        CompiledToolset(plans),
        common.prompts_resources,
        rules,
    )
    new = tuple(entry.original_name for entry in exposed)
    visible = {*same, *new}
    absent = tuple(name for name in common.tools if name not in visible)
    return OwnTools(toolset, new, absent, tuple(naming.skipped))


def _as_exposed(common: CompiledToolset, original: str) -> ExposedTool:
    plan = common.tools[original]
    return ExposedTool(original, plan.name, common.by_exposed_name.get(plan.name) is not plan)


def shown(name: str) -> str:
    """Return a name for a message, clipped, and escaped if it could not be one of a tool."""
    clipped = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
    return f"'{clipped}'" if is_valid_original_name(clipped) else ascii(clipped)


def name_fault(original: str, name: str) -> str:
    """Return why neither of a tool's or prompt's names can be used, or an empty text."""
    if not is_valid_original_name(original):
        return f"a name has {ORIGINAL_NAME_RULE}"
    if not is_valid_name(name):
        return f"the server's transforms make it {shown(name)}, which MCP clients do not accept"
    return ""


class _Naming:
    """Names the changed tools of one instance, within the bounds of a lease.

    Args:
        common: The toolset of all.
        listed: The instance's own definitions.
        rules: The rules of the server's names.
        changed: What may get a name.

    Attributes:
        skipped: A part of a sentence for each tool that gets no name.
    """

    def __init__(
        self,
        common: CompiledToolset,
        listed: Mapping[str, bytes],
        rules: NameRules,
        changed: Iterable[str],
    ) -> None:
        self._common, self._listed, self._rules = common, listed, rules
        self._taken = {plan.name: name for name, plan in common.tools.items() if name in listed}
        new = (
            name
            for name in changed
            if name not in common.tools
            and is_valid_original_name(name)
            and rules.tools.passes(name)
        )
        self._names = exposed_names(new, rules.transforms, _RESERVED | self._taken.keys())
        self._count = self._bytes = 0
        self.skipped: list[str] = []

    def expose(self, original: str) -> ExposedTool | None:
        """Return how a tool is exposed, or None if it is not."""
        if not self._rules.tools.passes(original):
            return None
        known = self._common.tools.get(original)
        name = known.name if known is not None else self._names.get(original, original)
        why = self._fault(original, name)
        if why:
            self.skipped.append(f"{shown(original)} ({why})")
            return None
        self._taken[name] = original
        self._count += 1
        self._bytes += len(self._listed[original])
        if known is not None:
            return _as_exposed(self._common, original)
        return ExposedTool(original, name, label=OWN_LABEL)

    def _fault(self, original: str, name: str) -> str:
        """Return why a tool cannot be exposed, or an empty text."""
        definition = self._listed[original]
        if why := name_fault(original, name):
            return why
        if name in _RESERVED:
            return f"the name {name} is reserved"
        if self._taken.get(name, original) != original:
            return f"its name would be {name}, which another tool of the server has"
        if is_task_only(definition):
            return "it can only be called as an MCP task"
        if len(definition) > bounds.MAX_DEFINITION:
            return f"its definition has {len(definition)} bytes"
        if self._count >= bounds.MAX_LEASE_TOOLS:
            return f"a lease adds or changes at most {bounds.MAX_LEASE_TOOLS} tools"
        if self._bytes + len(definition) > bounds.MAX_LEASE_TOOL_BYTES:
            return f"their definitions have more than {bounds.MAX_LEASE_TOOL_BYTES} bytes"
        return ""
