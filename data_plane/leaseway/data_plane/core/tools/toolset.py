"""The tools of one variant, compiled at each registry commit.

Also the contract: the tools that the probe recorded. Each instance's own list is compared with it
(design.md#reload).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from leaseway.data_plane.core.definitions.sharing import shared
from leaseway.data_plane.core.tools.arguments import ArgumentCheck, LazyArgumentCheck
from leaseway.data_plane.core.tools.prompts_resources import (
    NOTHING_BUT_TOOLS,
    CompiledPromptsResources,
)
from leaseway.data_plane.core.tools.schema_check import SchemaNotCompiled
from leaseway.data_plane.core.tools.structured import StructuredCheck
from leaseway.spec.contracts import same_contract
from leaseway.spec.model import NameRules
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.listing.definitions import hints_in
from leaseway.wire.text.suggestions import alike

_decode = msgspec.json.Decoder().decode
_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class ExposedTool:
    """How the control plane exposes one tool.

    Attributes:
        original_name: The server's name for it.
        name: The name after transforms.
        skipped: Whether another server has that name; then only the qualified name works.
        label: How metrics name it; empty means by its original name.
    """

    original_name: str
    name: str
    skipped: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """A tool, compiled for calls.

    Attributes:
        original_name: The server's name for it.
        name: The exposed name.
        definition: The tool as the server listed it, as JSON.
        arguments: Checks its arguments; None if they are not checked.
        idempotent: The server's `idempotentHint`.
        read_only: The server's `readOnlyHint`.
        schema_problem: Why the schema could not be compiled; empty without a problem.
        label: How metrics name it.
        results: Checks its results; None if it has no output schema.
    """

    original_name: str
    name: str
    definition: bytes
    arguments: LazyArgumentCheck | None
    idempotent: bool = False
    read_only: bool = False
    schema_problem: str = ""
    label: str = ""
    results: StructuredCheck | None = field(default=None, compare=False)

    @property
    def must_be_prepared(self) -> bool:
        """Whether its first call must wait for `prepare`, which may take long."""
        return (self.arguments is not None and self.arguments.is_slow) or (
            self.results is not None and self.results.is_slow
        )

    def prepare(self) -> None:
        """Compile its schemas; in a thread."""
        if self.arguments is not None:
            self.arguments.compiled()
        if self.results is not None:
            self.results.compiled()


@dataclass(frozen=True)
class CompiledToolset:
    """The tools of one variant.

    Attributes:
        tools: The exposed tools by original name.
        by_exposed_name: The same by exposed name.
        contract: Every recorded definition by original name, exposed or not.
        protocol_version: The version that the probe negotiated.
        prompts_resources: The server's prompts and resources.
        lease_rules: How tools are named that only the instance of a lease lists; None if they are
            not exposed.
    """

    tools: Mapping[str, ToolPlan] = field(default_factory=dict)
    by_exposed_name: Mapping[str, ToolPlan] = field(default_factory=dict)
    contract: Mapping[str, bytes] = field(default_factory=dict)
    protocol_version: str = ""
    prompts_resources: CompiledPromptsResources = NOTHING_BUT_TOOLS
    lease_rules: NameRules | None = None

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
    def listed(self) -> Mapping[str, bytes] | None:
        """The contract; None if the server was not listed yet. An API has no protocol version."""
        return self.contract if self.contract or self.protocol_version else None

    @property
    def schema_problems(self) -> tuple[str, ...]:
        """A sentence for each tool whose schema could not be compiled."""
        return tuple(
            f"The input schema of tool {plan.original_name} cannot be used ({plan.schema_problem}),"
            " so its arguments are not validated. Ask the server's maintainer to fix the schema."
            for plan in self.tools.values()
            if plan.schema_problem
        )


def tool_not_found(name: str, owner: str, names: Iterable[str]) -> Fault:
    """Return the fault of a missing tool, with the nearest of the existing names."""
    near = alike(name[:64], list(names))
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
    lease_rules: NameRules | None = None,
) -> CompiledToolset:
    """Compile the toolset of one variant.

    Args:
        recorded: Every definition that the server listed.
        exposed: The tools that callers may use, with their names.
        protocol_version: The version that the probe negotiated.
        previous: The current toolset, or None; definitions and plans of unchanged tools are
            reused.
        prompts_resources: The server's compiled prompts and resources.
        lease_rules: As in the toolset.

    Raises:
        ValueError: A recorded definition is not a JSON object with a name, or an exposed tool
            was never recorded; the message says which.
    """
    contract = {_parse(definition)["name"]: definition for definition in recorded}
    reusable: Mapping[str, ToolPlan] = {}
    if previous is not None:
        contract, reusable = shared(contract, previous.contract), previous.tools
    tools: dict[str, ToolPlan] = {}
    by_exposed_name: dict[str, ToolPlan] = {}
    for entry in exposed:
        name = entry.original_name
        if name not in contract:
            raise ValueError(f"The toolset exposes {name[:64]}, which is not among its tools.")
        plan = reusable.get(name)
        if plan is None or plan.name != entry.name or plan.definition != contract[name]:
            plan = _compile_plan(entry, contract[name])
        tools[name] = plan
        if not entry.skipped:
            by_exposed_name[plan.name] = plan
    return CompiledToolset(
        tools=tools,
        by_exposed_name=by_exposed_name,
        contract=contract,
        protocol_version=protocol_version,
        prompts_resources=prompts_resources,
        lease_rules=lease_rules,
    )


def _parse(definition: bytes) -> dict[str, Any]:
    try:
        tool = _decode(definition)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("A recorded tool definition is not JSON.") from error
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise ValueError("A recorded tool definition is not an object with a name.")
    return tool


def _compile_plan(entry: ExposedTool, definition: bytes) -> ToolPlan:
    tool = _parse(definition)
    arguments: LazyArgumentCheck | None = None
    problem = ""
    schema = tool.get("inputSchema")
    if schema is not None:
        try:
            # Only tried: compiled, a schema takes up to twenty times its bytes, and of hundreds of
            # tools few are called.
            arguments = LazyArgumentCheck(definition, is_quick=ArgumentCheck(schema).is_quick)
        except SchemaNotCompiled as error:
            problem = str(error) or "it does not compile"
    hints = hints_in(tool)
    return ToolPlan(
        original_name=entry.original_name,
        name=entry.name,
        definition=definition,
        arguments=arguments,
        idempotent=hints.idempotent,
        read_only=hints.read_only,
        schema_problem=problem,
        label=entry.label or entry.original_name,
        results=StructuredCheck(definition) if "outputSchema" in tool else None,
    )


def differing_tools(toolset: CompiledToolset, listed: Mapping[str, bytes]) -> frozenset[str]:
    """Return the original names of exposed tools that an instance lacks or defines differently.

    Only what calls depend on counts: a text with a process id, or a set in another order, does not.

    Args:
        toolset: The toolset that callers see.
        listed: The instance's own definitions by original name.
    """
    return frozenset(
        name
        for name, plan in toolset.tools.items()
        if name not in listed or not same_contract(plan.definition, listed[name])
    )


def has_other_tools(toolset: CompiledToolset, listed: Mapping[str, bytes]) -> bool:
    """Return whether an instance's list differs from the recorded one, in any text."""
    return _differ(toolset, listed, _same)


def serves_other_tools(toolset: CompiledToolset, listed: Mapping[str, bytes]) -> bool:
    """Return whether an instance's list differs from the contract in what calls depend on."""
    return _differ(toolset, listed, same_contract)


def _differ(
    toolset: CompiledToolset, listed: Mapping[str, bytes], same: Callable[[bytes, bytes], bool]
) -> bool:
    contract = toolset.contract
    return contract.keys() != listed.keys() or not all(
        same(definition, listed[name]) for name, definition in contract.items()
    )


def _same(one: bytes, other: bytes) -> bool:
    if one == other:
        return True
    return _comparable(one) == _comparable(other)


def _comparable(definition: bytes) -> object:
    try:
        tool = _decode(definition)
    except (ValueError, RecursionError):
        return definition
    if isinstance(tool, dict):
        tool.pop("_meta", None)  # describes the list, not the tool
    return tool


def describe_differences(differing: frozenset[str], listed: Mapping[str, bytes]) -> str:
    """Return the names of differing tools and how they differ, as the middle of a sentence."""
    names = sorted(differing)
    named = [
        f"{name} ({'defined differently' if name in listed else 'missing'})"
        for name in names[:_MAX_NAMED]
    ]
    more = len(names) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
