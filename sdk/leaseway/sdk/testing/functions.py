"""Functions as tools: the JSON Schema of their parameters, and the conversion of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.errors import PydanticInvalidForJsonSchema

from leaseway.sdk.testing.context import CallContext
from leaseway.server.definitions import arguments_model
from leaseway.wire.names import is_valid_name


@dataclass(frozen=True, eq=False)
class FakeTool:
    """A function that a fake server serves as a tool.

    Attributes:
        context: The parameter that takes the `CallContext`, or None.
        model: The pydantic model that converts arguments, or None if the test gave a schema.
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
    model: Any

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
        if self.model is not None:
            values_model = self.model.model_validate(arguments)
            values = {name: getattr(values_model, name) for name in self.model.model_fields}
            values.update(values_model.model_extra or {})
        else:
            values = dict(arguments)
        if self.context is not None:
            values[self.context] = context
        return values


def describe_parameters(
    name: str,
    function: Callable[..., Any],
    schema: Mapping[str, Any] | None,
    scope: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Any, str | None]:
    """Return a tool's input schema, its pydantic model and its parameter for the `CallContext`.

    Args:
        name: The tool's exposed name.
        function: The tool's function.
        schema: The input schema that the test gave, or None to derive it; the model is None if it
            is given.
        scope: Names that string annotations may use besides those of the function's module.

    Raises:
        TypeError: The parameters cannot be described by a schema.
    """
    parameters = _parameters(function, scope)
    context = next((p.name for p in parameters if p.annotation is CallContext), None)
    if schema is not None:
        return schema, None, context
    model = arguments_model(name, [p for p in parameters if p.name != context])
    return _build_schema(name, model), model, context


def check_name(kind: str, exposed: str, original: str) -> None:
    """Raise a ValueError if a tool or prompt cannot have this name."""
    if not (is_valid_name(exposed) and is_valid_name(original)):
        raise ValueError(
            f"'{exposed}' is no name for a {kind}: use 1 to 64 of a-z, A-Z, 0-9, _ and -. "
            "Pass name=."
        )


def _parameters(function: Callable[..., Any], scope: Mapping[str, Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function, locals=dict(scope), eval_str=True)
    except NameError as error:
        raise TypeError(
            f"An annotation of '{function.__name__}' uses a name that is not defined where the "
            f"function becomes a tool ({error}). Define it before, or pass schema=."
        ) from None
    return list(signature.parameters.values())


def _build_schema(name: str, model: Any) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = model.model_json_schema()
    except PydanticInvalidForJsonSchema as error:
        raise TypeError(f"No JSON Schema can be made for tool '{name}': {error}") from None
    schema.pop("title", None)
    return schema
