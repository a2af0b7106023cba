"""The public interface for server authors: base class, tools, resources, results, errors."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, TypeVar, Unpack, overload

from leaseway.wire.messages.mcp import LOG_LEVELS

MYPY = False
"""True for mypy alone."""

if TYPE_CHECKING:
    from mcp.server import MCPServer

_Function = TypeVar("_Function", bound=Callable[..., Any])
CONFIG_VARIABLE: Final = "LEASEWAY_SERVER_CONFIG"
"""The variable from which the process of a class reads its config."""
_MARK: Final = "_leaseway_tool"


class ToolError(Exception):
    """A call failed for a reason that the caller can understand; the message becomes the result.

    Any other exception is a bug of the server: its traceback is written to the server's log.
    """


class Notifier(Protocol):
    """The server's connection: sends notifications to the caller during a call."""

    @property
    def transport_type(self) -> str:
        """The name of the transport, such as `stdio`."""

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification for the current call; outside of a call it is dropped."""


@dataclass(frozen=True)
class ToolResult:
    """A result with separate text and structured content.

    Attributes:
        text: The text, for models.
        structured: The structured content, for programs, or None.
        is_error: Whether the call failed.
    """

    text: str
    structured: Mapping[str, Any] | None = None
    is_error: bool = False


@dataclass(frozen=True)
class Tool:
    """A tool of `tools/list`.

    Attributes:
        name: Its name: 1 to 64 of a-z, A-Z, 0-9, `_` and `-`.
        description: What it does, for models.
        input_schema: JSON Schema of its arguments, which are validated.
        output_schema: JSON Schema of its structured content, or None.
        title: Its display name, or None.
        annotations: MCP's hints, such as `{"readOnlyHint": True}`.
        function: Handles a call, given its arguments; may be async. None means `handle_tool`.
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
    """A resource of `resources/list`; `read_resource` returns its content."""

    uri: str
    name: str
    description: str = ""
    mime_type: str | None = None
    title: str | None = None


class _Marks(TypedDict, total=False):
    name: str | None
    description: str | None
    title: str | None
    annotations: Mapping[str, Any] | None


@overload
def tool(function: _Function) -> _Function: ...


@overload
def tool(**marks: Unpack[_Marks]) -> Callable[[_Function], _Function]: ...


def tool(function: Any = None, **marks: Unpack[_Marks]) -> Any:
    """Make a method a tool, with a schema from its type hints and a description from its docstring.

    Args:
        function: The method, if the decorator is used without parentheses.
        **marks: `name` and `description` instead of the method's; `title`, its display name;
            `annotations`, MCP's hints, such as `{"readOnlyHint": True}`.
    """
    if function is None:
        return partial(tool, **marks)
    try:
        setattr(_function_of(function), _MARK, marks)
    except AttributeError:
        raise TypeError(f"@tool marks methods, and no {type(function).__name__}") from None
    return function


def find_marks(function: Any) -> Mapping[str, Any]:
    """Return what `@tool` says of a function."""
    return getattr(_function_of(function), _MARK, {})


def _function_of(member: Any) -> Any:
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


class BaseMCPServer(ABC):
    """An MCP server as a class. Only `server_name` is required.

    Either mark methods with `@tool`, or override `list_tools` and `handle_tool`. Every method may
    be async. Other methods run in a thread, one at a time, so that they do not block the server.

    Args:
        transport: The connection; None in tests, where notifications are dropped.
        config: The `config` of the server's configuration entry, with resolved references.
    """

    def __init__(
        self, transport: Notifier | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        self._transport = transport
        self._config = dict(config or {})

    @property
    def config(self) -> Mapping[str, Any]:
        """The `config` of the server's configuration entry."""
        return self._config

    @property
    @abstractmethod
    def server_name(self) -> str:
        """The server's name for clients; may be a class attribute."""

    if TYPE_CHECKING and not MYPY:  # pyright takes no class attribute in place of a property
        server_name: Any

    @property
    def server_version(self) -> str:
        """The server's version for clients."""
        return ""

    def register(self, server: MCPServer[Any]) -> None:  # noqa: B027
        """Add prompts, resource templates and more to the official package's server; called once.

        For example `server.prompt()(self.greet)`, with all that `mcp.server.MCPServer` has.
        """

    def start(self) -> Awaitable[None] | None:  # noqa: B027
        """Open resources; called once, before the first request."""

    def stop(self) -> Awaitable[None] | None:  # noqa: B027
        """Close resources; called once, after the connection has ended."""

    def list_tools(self) -> Any:
        """Return the tools: `Tool`s, methods with type hints, or mappings in MCP's form.

        The default returns the methods marked with `@tool`.
        """
        members = inspect.getmembers_static(type(self))
        return [
            getattr(self, name) for name, member in members if hasattr(_function_of(member), _MARK)
        ]

    def handle_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Handle a call of a tool without a function; its arguments are valid.

        Returns:
            Text, a mapping (which becomes structured content), any JSON value, a `ToolResult`, or
            a mapping in MCP's form (`{"content": […]}`). May be awaitable.

        Raises:
            ToolError: The call failed for a reason that the caller can understand.
        """
        raise NotImplementedError(
            f"{type(self).__name__} lists the tool {name!r} but has no handle_tool()."
        )

    def list_resources(self) -> Sequence[Resource] | Awaitable[Sequence[Resource]]:
        """Return the resources; none by default."""
        return []

    def read_resource(self, uri: str) -> Any:
        """Return a resource's content: text or bytes. May be awaitable."""
        raise ToolError(f"There is no resource {uri!r}.")

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report the progress of the current call to its caller.

        Callable from any method, and from threads that have the context of the call, as those of
        `asyncio.to_thread` have; another gets it by `contextvars.copy_context().run`.

        Raises:
            ValueError: A number is not finite.
        """
        for number in (progress, total):
            if number is not None and not isfinite(number):
                raise ValueError(f"progress is told in finite numbers, not {number!r}")
        params = {"progress": progress, "total": total, "message": message}
        self._notify("notifications/progress", params)

    def log(self, level: str, data: Any) -> None:
        """Send the caller a log message; callable as `report_progress` is.

        Raises:
            ValueError: The level is none of MCP's.
        """
        if level not in LOG_LEVELS:
            raise ValueError(f"the level {level!r:.80} is none of {', '.join(LOG_LEVELS)}")
        self._notify("notifications/message", {"level": level, "data": data})

    def _notify(self, method: str, params: Mapping[str, Any]) -> None:
        if self._transport is not None:
            self._transport.notify(method, params)
