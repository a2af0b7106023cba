"""What a server's author uses: the base class, tools, resources, and how a tool fails."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, overload

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK: Final = "_leaseway_tool"


class ToolError(Exception):
    """A call can't be done as asked; the text is a sentence that the caller gets as the result.

    Any other exception is a fault of the server: its traceback goes to the server's log.
    """


class Notifier(Protocol):
    """The connection, as a server sees it: `transport_type`, and what is sent during a call."""

    @property
    def transport_type(self) -> str:
        """The name of the transport, such as `stdio`."""

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification about the call under way; outside of a call it goes nowhere."""


@dataclass(frozen=True)
class ToolResult:
    """A result of which a tool says both forms itself.

    Attributes:
        text: For a model.
        structured: The same as data, for programs, or None.
        is_error: Whether the tool could not do what it was asked.
    """

    text: str
    structured: Mapping[str, Any] | None = None
    is_error: bool = False


@dataclass(frozen=True)
class Tool:
    """A tool, as `tools/list` shows it.

    Attributes:
        name: Its name: 1 to 64 of a-z, A-Z, 0-9, `_` and `-`.
        description: What it does, for a model.
        input_schema: JSON Schema of its arguments, which are checked against it.
        output_schema: JSON Schema of its structured result, or None.
        title: Its name for people, or None.
        annotations: MCP's hints, such as `{"readOnlyHint": True}`.
        function: Does it, given its arguments; None leaves that to `handle_tool`. It may be async.
    """

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    output_schema: Mapping[str, Any] | None = None
    title: str | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)
    function: Callable[[Mapping[str, Any]], Any] | None = None


@dataclass(frozen=True)
class Resource:
    """A resource, as `resources/list` shows it; `read_resource` gives its content."""

    uri: str
    name: str
    description: str = ""
    mime_type: str | None = None
    title: str | None = None


@dataclass(frozen=True)
class Marked:
    """What `@tool` says about a method."""

    name: str
    description: str | None
    title: str | None
    annotations: Mapping[str, Any]


@overload
def tool(function: _Function) -> _Function: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    title: str | None = None,
    annotations: Mapping[str, Any] | None = None,
) -> Callable[[_Function], _Function]: ...


def tool(
    function: _Function | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    title: str | None = None,
    annotations: Mapping[str, Any] | None = None,
) -> Any:
    """Make a method a tool; its type hints become the schema, its docstring the description.

    Args:
        function: The method, where the decorator is used without parentheses.
        name: The tool's name; None means the method's.
        description: What it does; None means the docstring.
        title: Its name for people.
        annotations: MCP's hints, such as `{"readOnlyHint": True}`.
    """

    def mark(method: _Function) -> _Function:
        marked = Marked(name or method.__name__, description, title, dict(annotations or {}))
        setattr(_function_of(method), _MARK, marked)
        return method

    return mark if function is None else mark(function)


def mark_of(function: Any) -> Marked | None:
    """Return what `@tool` says about a function, or None."""
    marked = getattr(_function_of(function), _MARK, None)
    return marked if isinstance(marked, Marked) else None


def _function_of(member: Any) -> Any:
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


class BaseMCPServer(ABC):
    """An MCP server as a class. It needs `server_name`; all else has a default.

    Either mark methods with `@tool`, or override `list_tools` and `handle_tool`. Each method may
    be async. Those that are not run in a thread, one at a time, so that the server still answers
    while one works.

    Args:
        transport: The connection; None in a test, where notifications go nowhere.
        config: What the configuration's `config` says, its references resolved.
    """

    def __init__(
        self, transport: Notifier | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        self._transport = transport
        self._config = dict(config or {})

    @property
    def config(self) -> Mapping[str, Any]:
        """What the configuration's `config` says."""
        return self._config

    @property
    @abstractmethod
    def server_name(self) -> str:
        """The name that the server tells its clients; a class attribute serves, too."""

    @property
    def server_version(self) -> str:
        """The version that the server tells its clients."""
        return ""

    def start(self) -> Awaitable[None] | None:  # noqa: B027
        """Open what the server needs; called once, before the first request."""

    def stop(self) -> Awaitable[None] | None:  # noqa: B027
        """Close it; called once, when the connection has ended."""

    def list_tools(self) -> Any:
        """Return the tools: `Tool`s, methods with type hints, or mappings in MCP's own form.

        By default these are the methods marked with `@tool`, by name.
        """
        members = inspect.getmembers_static(type(self))
        return [getattr(self, name) for name, member in members if mark_of(member) is not None]

    def handle_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool that is listed without a function; its arguments fit its schema.

        Returns:
            Text, a mapping (which becomes structured content), anything that JSON can hold, a
            `ToolResult`, or a mapping in MCP's own form (`{"content": […]}`). May be awaitable.

        Raises:
            ToolError: The call can't be done as asked.
        """
        raise NotImplementedError(
            f"{type(self).__name__} lists the tool {name!r} and has no handle_tool() to call it."
        )

    def list_resources(self) -> Sequence[Resource] | Awaitable[Sequence[Resource]]:
        """Return the resources, by default none."""
        return []

    def read_resource(self, uri: str) -> Any:
        """Return a resource's content: text or bytes. May be awaitable."""
        raise ToolError(f"There is no resource {uri!r}.")

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Tell the caller of the call under way how far it is; callable from any method."""
        params = {"progress": progress, "total": total, "message": message}
        self._notify("notifications/progress", params)

    def log(self, level: str, data: Any) -> None:
        """Send the caller a log message; `level` is one of MCP's, such as `warning`."""
        self._notify("notifications/message", {"level": level, "data": data})

    def _notify(self, method: str, params: Mapping[str, Any]) -> None:
        if self._transport is not None:
            self._transport.notify(method, params)
