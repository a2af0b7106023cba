"""Tools, and what lists of tools, prompts and resources have in common."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

from google.protobuf.message import Message

from leaseway.sdk.plain_data import plain_schema
from leaseway.v1 import catalog_pb2
from leaseway.wire.listing.model_parts import with_accepted_parts
from leaseway.wire.listing.model_schemas import (
    ModelSchema,
    with_accepted_names,
    with_plain_root,
)
from leaseway.wire.names import qualified

ItemT = TypeVar("ItemT")
MessageT = TypeVar("MessageT", bound=Message)


class CatalogList(tuple[ItemT, ...]):  # noqa: SLOT001 - a tuple cannot have slots with content
    """The items of the catalog at one registry version: a tuple.

    Attributes:
        registry_version: The version at which the items were read; it only increases.
        pending: Ids of servers that have not listed their items yet.
    """

    registry_version: int
    pending: tuple[str, ...]

    def __new__(
        cls, items: Iterable[ItemT], registry_version: int, pending: Iterable[str], *_: Any
    ) -> Self:
        """Return the list of the items."""
        made = super().__new__(cls, items)
        made.registry_version = registry_version
        made.pending = tuple(pending)
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self), self.registry_version, self.pending

    def _asdict(self) -> dict[str, Any]:
        """Return the constructor's arguments; LangGraph stores values of a graph by them."""
        version, pending = self.registry_version, self.pending
        return {"items": tuple(self), "registry_version": version, "pending": pending}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} at version {self.registry_version})"

    @classmethod
    def _validate(cls, value: Any) -> Any:
        if isinstance(value, cls):
            return value
        raise ValueError(f"The value must be a {cls.__name__}; it is {type(value).__name__}.")

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        return plain_schema(cls._validate, list)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"type": "array", "title": cls.__name__, "items": {"type": "object"}}


class SharedItems:
    """Converts items of the catalog; equal ones are one object as long as a list has it.

    For programs with lists of many callers, who see mostly the same. They change no item: one takes
    six times the memory of its JSON.
    """

    def __init__(self) -> None:
        self._items: WeakValueDictionary[tuple[object, bytes], Any] = WeakValueDictionary()

    def sharing(self, convert: Callable[[MessageT], ItemT]) -> Callable[[MessageT], ItemT]:
        """Return what converts messages as a function does, but equal ones once."""
        return partial(self._shared, convert)

    def _shared(self, convert: Callable[[MessageT], ItemT], message: MessageT) -> ItemT:
        content = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
        item: ItemT | None = self._items.get((convert, content))
        if item is None:
            item = self._items[convert, content] = convert(message)
        return item


def json_object(data: bytes) -> dict[str, Any]:
    """Decode a JSON object of the catalog; empty for anything else."""
    value = json.loads(data) if data else {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Tool:
    """One tool; `title` is a name for people, or empty.

    Attributes:
        name: The name for calls, unique among the visible tools.
        input_schema: The JSON Schema of the arguments.
        output_schema: The JSON Schema of the structured results, or None.
        annotations: The server's hints, such as `readOnlyHint`.
        extra: The other members of the server's definition.
        shared: Whether calls share one client (True) or each session leases its own (False).
        sessions_from: What tells MCP fronts to which session a call belongs, in order; empty means
            the front's own rules.
    """

    name: str
    server_id: str
    original_name: str
    title: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    annotations: dict[str, Any]
    extra: dict[str, Any]
    shared: bool
    sessions_from: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Read back from JSON or MessagePack, as by checkpoints of LangGraph, it is a list.
        object.__setattr__(self, "sessions_from", tuple(self.sessions_from))

    @property
    def qualified_name(self) -> str:
        """`server_id:original_name`, which also works as a name for calls."""
        return qualified(self.server_id, self.original_name)

    @cached_property
    def for_models(self) -> ModelSchema:
        """The input schema with parts, and names of arguments, that models' APIs accept."""
        return with_accepted_names(self.input_schema)

    @property
    def _schema_for_apis(self) -> dict[str, Any]:
        return with_plain_root(with_accepted_parts(self.input_schema))

    def definition(self) -> dict[str, Any]:
        """Return the definition as in MCP's `tools/list`, without empty members."""
        members = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "annotations": self.annotations,
        }
        present = {name: value for name, value in members.items() if value or name == "inputSchema"}
        return {**self.extra, **present}

    def to_openai(self) -> dict[str, Any]:
        """Return the tool in OpenAI's chat completions format; see `project_tools` for many."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": deepcopy(self._schema_for_apis),
        }
        return {"type": "function", "function": function}

    def to_anthropic(self) -> dict[str, Any]:
        """Return the tool in Anthropic's messages format; see `project_tools` for many."""
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": deepcopy(self._schema_for_apis),
        }


class ToolList(CatalogList[Tool]):
    """Tools, ordered by name.

    Attributes:
        registry_version: The version at which the tools were read; it only increases.
        pending: Ids of servers that have not listed their tools yet.
        config_loaded_at: When the current configuration was loaded, or None without one.
    """

    config_loaded_at: datetime | None

    def __new__(
        cls,
        items: Iterable[Tool],
        registry_version: int,
        pending: Iterable[str],
        config_loaded_at: datetime | None,
    ) -> Self:
        """Return the list of the tools."""
        made = super().__new__(cls, items, registry_version, pending)
        made.config_loaded_at = config_loaded_at
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (*super().__getnewargs__(), self.config_loaded_at)

    def _asdict(self) -> dict[str, Any]:
        return {**super()._asdict(), "config_loaded_at": self.config_loaded_at}


def tool_from_proto(message: catalog_pb2.Tool) -> Tool:
    """Convert a tool of the catalog."""
    return Tool(
        name=message.name,
        server_id=message.server_id,
        original_name=message.original_name,
        title=message.title,
        description=message.description,
        input_schema=json_object(message.input_schema),
        output_schema=json_object(message.output_schema) if message.output_schema else None,
        annotations=json_object(message.annotations),
        extra=json_object(message.extra),
        shared=message.shared,
        sessions_from=tuple(message.sessions_from),
    )


def tool_list(tools: Iterable[Tool], last: catalog_pb2.ListToolsResponse) -> ToolList:
    """Build the list from the tools of all pages and the last page's other fields."""
    loaded = (
        last.config_loaded_at.ToDatetime(tzinfo=UTC) if last.HasField("config_loaded_at") else None
    )
    return ToolList(tools, last.registry_version, last.pending, loaded)
