"""The tools of one variant, compiled when the registry commits so that a call only looks up.

Also the contract: what the probe recorded, which each instance's own list is compared with
(DESIGN §3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from leaseway.data_plane.core.tools.arguments import ArgumentCheck, SchemaNotCompiled
from leaseway.data_plane.core.tools.prompts_resources import (
    NOTHING_BUT_TOOLS,
    CompiledPromptsResources,
)
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import nearest

_decode = msgspec.json.Decoder().decode
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class ExposedTool:
    """How the control plane exposes one tool.

    Attributes:
        original_name: The server's name for it.
        name: The name after transforms.
        skipped: Whether another server has the name: then it is called by its own name alone.
    """

    original_name: str
    name: str
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """All that a call of one tool needs to know beforehand.

    Attributes:
        original_name: The server's name for it, also what goes to the server.
        name: The exposed name.
        definition: What the server listed, as JSON.
        check: The compiled input schema, or None: arguments pass as they are.
        idempotent: The server says that a repeated call changes nothing more.
        read_only: The server says that a call changes nothing.
        schema_problem: Why `check` is None although there is a schema; empty where there is none.
    """

    original_name: str
    name: str
    definition: bytes
    check: ArgumentCheck | None
    idempotent: bool = False
    read_only: bool = False
    schema_problem: str = ""


@dataclass(frozen=True)
class CompiledToolset:
    """The tools of one variant.

    Attributes:
        tools: The exposed ones by original name.
        by_exposed_name: The same by exposed name.
        contract: Every recorded definition by original name, exposed or not.
        protocol_version: What the probe negotiated.
        prompts_resources: What the server has besides tools.
    """

    tools: Mapping[str, ToolPlan] = field(default_factory=dict)
    by_exposed_name: Mapping[str, ToolPlan] = field(default_factory=dict)
    contract: Mapping[str, bytes] = field(default_factory=dict)
    protocol_version: str = ""
    prompts_resources: CompiledPromptsResources = NOTHING_BUT_TOOLS

    def find(self, server_id: str, original_name: str) -> ToolPlan:
        """Return an exposed tool.

        Raises:
            Fault: TOOL_NOT_FOUND, with the nearest names.
        """
        plan = self.tools.get(original_name)
        if plan is None:
            raise tool_not_found(original_name, f"Server {server_id}", self.tools)
        return plan

    @property
    def schema_problems(self) -> tuple[str, ...]:
        """A sentence for each tool whose arguments pass unvalidated although it has a schema."""
        return tuple(
            f"The input schema of tool {plan.original_name} cannot be used ({plan.schema_problem}),"
            " so its arguments pass unvalidated. Ask the server's maintainer to mend the schema."
            for plan in self.tools.values()
            if plan.schema_problem
        )


def tool_not_found(name: str, owner: str, known: Iterable[str]) -> Fault:
    """Return the refusal of a tool that does not exist, with the nearest known names."""
    near = nearest(name[:64], known)
    hint = f" Did you mean {', '.join(near)}?" if near else " List the tools to see what it has."
    return Fault(
        Reason.TOOL_NOT_FOUND,
        f"{owner} has no tool {name[:64]}.{hint}",
        metadata={"nearest": ",".join(near)} if near else {},
    )


def compile_toolset(
    recorded: Iterable[bytes],
    exposed: Iterable[ExposedTool],
    protocol_version: str,
    previous: CompiledToolset | None = None,
    prompts_resources: CompiledPromptsResources = NOTHING_BUT_TOOLS,
) -> CompiledToolset:
    """Compile what a delta says about one variant.

    Args:
        recorded: Every definition that the server listed.
        exposed: Which of them callers may use, and under which names.
        protocol_version: What the probe negotiated.
        previous: The toolset in force; its plans are kept where nothing about them changed.
        prompts_resources: What the server has besides tools, compiled.

    Raises:
        ValueError: A recorded definition is not a JSON object with a name, or an exposed tool
            was never recorded; the message says which.
    """
    contract: dict[str, bytes] = {}
    parsed: dict[str, dict[str, Any]] = {}
    for definition in recorded:
        tool = _parse(definition)
        contract[tool["name"]] = definition
        parsed[tool["name"]] = tool
    kept = previous.tools if previous is not None else {}
    tools: dict[str, ToolPlan] = {}
    nameless: set[str] = set()
    for entry in exposed:
        if entry.skipped:
            nameless.add(entry.original_name)
        name = entry.original_name
        if name not in contract:
            raise ValueError(f"The toolset exposes {name[:64]}, which is not among its tools.")
        plan = kept.get(name)
        if plan is None or plan.name != entry.name or plan.definition != contract[name]:
            plan = _plan(entry, contract[name], parsed[name])
        tools[name] = plan
    named = {plan.name: plan for name, plan in tools.items() if name not in nameless}
    return CompiledToolset(tools, named, contract, protocol_version, prompts_resources)


def _parse(definition: bytes) -> dict[str, Any]:
    try:
        tool = _decode(definition)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("A recorded tool definition is not JSON.") from error
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise ValueError("A recorded tool definition is not an object with a name.")
    return tool


def _plan(entry: ExposedTool, definition: bytes, tool: Mapping[str, Any]) -> ToolPlan:
    check: ArgumentCheck | None = None
    problem = ""
    schema = tool.get("inputSchema")
    if schema is not None:
        try:
            check = ArgumentCheck(schema)
        except SchemaNotCompiled as error:
            problem = str(error) or "it does not compile"
    hints = tool.get("annotations")
    hints = hints if isinstance(hints, dict) else {}
    return ToolPlan(
        original_name=entry.original_name,
        name=entry.name,
        definition=definition,
        check=check,
        idempotent=hints.get("idempotentHint") is True,
        read_only=hints.get("readOnlyHint") is True,
        schema_problem=problem,
    )


def differing_tools(toolset: CompiledToolset, listed: Mapping[str, bytes]) -> frozenset[str]:
    """Return the exposed tools (original names) that an instance lacks or defines differently.

    Args:
        toolset: What callers were told.
        listed: What the instance itself listed, by original name.
    """
    return frozenset(
        name
        for name, plan in toolset.tools.items()
        if name not in listed or not _same(plan.definition, listed[name])
    )


def has_other_tools(toolset: CompiledToolset, listed: Mapping[str, bytes]) -> bool:
    """Return whether an instance lists anything else than what was recorded, exposed or not."""
    contract = toolset.contract
    return contract.keys() != listed.keys() or not all(
        _same(definition, listed[name]) for name, definition in contract.items()
    )


def _same(one: bytes, other: bytes) -> bool:
    if one == other:
        return True
    return _comparable(one) == _comparable(other)


def _comparable(definition: bytes) -> object:
    tool = _decode(definition)
    if isinstance(tool, dict):
        tool.pop("_meta", None)  # about the listing, not about the tool
    return tool


def describe_differences(differing: frozenset[str], listed: Mapping[str, bytes]) -> str:
    """Return which tools differ and how, as the middle of a sentence."""
    names = sorted(differing)
    named = [
        f"{name} ({'defined differently' if name in listed else 'missing'})"
        for name in names[:_MOST_NAMED]
    ]
    more = len(names) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
