"""Functions as tools: the schema of their parameters, and the arguments as they take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ConfigDict, create_model
from pydantic.errors import PydanticInvalidForJsonSchema

from leaseway.sdk.testing.context import CallContext
from leaseway.wire.names import is_valid_name, qualified

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, eq=False)
class FakeTool:
    """One tool of a fake.

    Attributes:
        name: The exposed name.
        server_id: Its server.
        original_name: The name that the server has for it.
        description: What it does.
        function: What runs.
        input_schema: The JSON Schema of its arguments.
        output_schema: That of its structured results, or None.
        annotations: Hints, such as `readOnlyHint`.
        context: The parameter that takes the `CallContext`, or None.
        model: The pydantic model that converts arguments, or None where the schema was given.
        needs_approval: Whether a person has to agree to each call.
    """

    name: str
    server_id: str
    original_name: str
    description: str
    function: Callable[..., Any]
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)
    context: str | None = None
    model: Any = None
    needs_approval: bool = False

    @property
    def qualified_name(self) -> str:
        """`server:tool`, which can be called too."""
        return qualified(self.server_id, self.original_name)

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as its server lists it."""
        listed = {
            "name": self.original_name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "annotations": self.annotations,
        }
        return {key: value for key, value in listed.items() if value or key == "inputSchema"}

    def bind(self, arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
        """Return what the function is called with: checked arguments as the types it names."""
        if self.model is not None:
            made = self.model.model_validate(arguments)
            values = {name: getattr(made, name) for name in type(made).model_fields}
            values.update(made.model_extra or {})
        else:
            values = dict(arguments)
        if self.context is not None:
            values[self.context] = context
        return values


def make_tool(
    server_id: str,
    prefix: str,
    function: Callable[..., Any],
    *,
    name: str | None,
    description: str | None,
    schema: Mapping[str, Any] | None,
    output_schema: Mapping[str, Any] | None,
    annotations: Mapping[str, Any] | None,
    names: Mapping[str, Any],
) -> FakeTool:
    """Return a function as a tool.

    Args:
        server_id: Its server.
        prefix: What its exposed name begins with.
        function: What runs; it may be async.
        name: Its original name; None means the function's.
        description: What it does; None means the function's docstring.
        schema: The JSON Schema of its arguments; None makes it from the parameters.
        output_schema: That of its structured results, or None.
        annotations: Hints, or None.
        names: What annotations that are text may refer to, beside the function's module.

    Raises:
        ValueError: The name is none that tools may have.
        TypeError: No schema can be made from the parameters.
    """
    original = name or function.__name__
    exposed = prefix + original
    if not (is_valid_name(exposed) and is_valid_name(original)):
        raise ValueError(
            f"'{exposed}' is no name for a tool: 1 to 64 of a-z, A-Z, 0-9, _ and - are. Pass name=."
        )
    parameters = _parameters(function, names)
    context = next((p.name for p in parameters if p.annotation is CallContext), None)
    model = None
    if schema is None:
        model = _model(exposed, [p for p in parameters if p.name != context])
        schema = _schema_of(exposed, model)
    return FakeTool(
        name=exposed,
        server_id=server_id,
        original_name=original,
        description=description if description is not None else inspect.getdoc(function) or "",
        function=function,
        input_schema=schema,
        output_schema=output_schema,
        annotations=dict(annotations or {}),
        context=context,
        model=model,
    )


def _parameters(function: Callable[..., Any], names: Mapping[str, Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function, locals=dict(names), eval_str=True)
    except NameError as error:
        raise TypeError(
            f"An annotation of '{function.__name__}' names what is not known where it is made a "
            f"tool ({error}); define that before, or pass schema=."
        ) from None
    return list(signature.parameters.values())


def _model(name: str, parameters: list[inspect.Parameter]) -> Any:
    fields: dict[str, Any] = {}
    extra: Any = "forbid"
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = "allow"
            continue
        if parameter.kind not in _NAMED or parameter.name.startswith("_"):
            raise TypeError(
                f"Parameter '{parameter.name}' of tool '{name}' cannot be an argument: arguments "
                "come by name, and no name begins with an underscore."
            )
        empty = inspect.Parameter.empty
        kind = Any if parameter.annotation is empty else parameter.annotation
        fields[parameter.name] = (kind, ... if parameter.default is empty else parameter.default)
    return create_model(name, __config__=ConfigDict(extra=extra), **fields)


def _schema_of(name: str, model: Any) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = model.model_json_schema()
    except PydanticInvalidForJsonSchema as error:
        raise TypeError(f"No JSON Schema can be made for tool '{name}': {error}") from None
    schema.pop("title", None)
    return schema
