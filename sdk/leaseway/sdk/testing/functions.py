"""Functions as tools: the JSON Schema of their parameters, and the conversion of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata

from leaseway.sdk.testing.context import CallContext
from leaseway.server.definitions import describe_function
from leaseway.wire.names import is_valid_name


@dataclass(frozen=True, eq=False)
class FakeTool:
    """A function that a fake server serves as a tool.

    Attributes:
        context: The parameter that takes the `CallContext`, or None.
        metadata: Converts arguments; None if the test gave a schema.
    """

    name: str
    original_name: str
    description: str
    function: Callable[..., Any]
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any] | None
    meta: Mapping[str, Any] | None
    needs_approval: bool
    context: str | None
    metadata: FuncMetadata | None

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as its server lists it."""
        optional = {
            "description": self.description,
            "outputSchema": self.output_schema,
            "annotations": self.annotations,
            "_meta": self.meta,
        }
        return {
            "name": self.original_name,
            "inputSchema": self.input_schema,
            **{key: value for key, value in optional.items() if value},
        }

    def bind(self, arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
        """Return the function's keyword arguments, converted to the types of its parameters."""
        values = self.metadata.validate_arguments(arguments) if self.metadata else dict(arguments)
        if self.context is not None:
            values[self.context] = context
        return values


def describe_parameters(
    name: str,
    function: Callable[..., Any],
    schema: Mapping[str, Any] | None,
    scope: Mapping[str, Any],
) -> tuple[Mapping[str, Any], FuncMetadata | None, str | None]:
    """Return a tool's input schema, its arguments' converter, its parameter for `CallContext`.

    Args:
        name: The tool's exposed name.
        function: The tool's function.
        schema: The input schema that the test gave, or None to derive it; then arguments are
            converted.
        scope: Names that string annotations may use besides those of the function's module.

    Raises:
        TypeError: The parameters cannot be described by a schema.
    """
    signature = _signature(function, scope)
    parameters = signature.parameters.values()
    context = next((p.name for p in parameters if p.annotation is CallContext), None)
    if schema is not None:
        return schema, None, context
    described = signature.replace(
        parameters=[p for p in parameters if p.name != context],
        return_annotation=inspect.Signature.empty,
    )

    def stub() -> None: ...

    tool = describe_function(stub, described, name=name)
    return tool.parameters, tool.fn_metadata, context


def check_name(kind: str, exposed: str, original: str) -> None:
    """Raise a ValueError if a tool or prompt cannot have this name."""
    if not (is_valid_name(exposed) and is_valid_name(original)):
        raise ValueError(
            f"'{exposed}' is no name for a {kind}: use 1 to 64 of a-z, A-Z, 0-9, _ and -. "
            "Pass name=."
        )


def _signature(function: Callable[..., Any], scope: Mapping[str, Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, locals=dict(scope), eval_str=True)
    except NameError as error:
        raise TypeError(
            f"An annotation of '{function.__name__}' uses a name that is not defined where the "
            f"function becomes a tool ({error}). Define it before, or pass schema=."
        ) from None
