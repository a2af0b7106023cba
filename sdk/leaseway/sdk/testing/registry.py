"""What a fake offers: servers and their tools, by exposed and by qualified name."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from leaseway.sdk.testing.functions import FakeTool, make_tool
from leaseway.v1 import catalog_pb2
from leaseway.wire.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS
from leaseway.wire.fault import Fault
from leaseway.wire.names import is_valid_name, nearest
from leaseway.wire.reasons import Reason

__all__ = ["FakeServer", "Registry", "tool_message"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Registry:
    """Everything that a fake offers at one version; may be changed from any thread.

    Args:
        on_change: Called after each change, in the thread that made it.

    Attributes:
        version: The registry version.
        servers: The servers by id.
        tools: The tools by exposed name.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self.version = 1
        self.servers: dict[str, FakeServer] = {}
        self.tools: dict[str, FakeTool] = {}

    def add_server(self, server: FakeServer) -> None:
        """Offer a server.

        Raises:
            ValueError: Its id is taken, or none that a server may have.

        """
        if not is_valid_name(server.id) or server.id == ADMIN_TOOLSET:
            raise ValueError(
                f"'{server.id}' is no id for a server: 1 to 64 of a-z, A-Z, 0-9, _ and - are, "
                f"except {ADMIN_TOOLSET}."
            )
        if server.id in self.servers:
            raise ValueError(f"There is a server '{server.id}' already; add tools to that one.")
        with self._lock:
            self.servers = {**self.servers, server.id: server}
            self.version += 1
        self._on_change()

    def add_tool(self, tool: FakeTool) -> None:
        """Offer a tool; one of the same server and name is replaced.

        Raises:
            ValueError: Another server has the name.

        """
        with self._lock:
            old = self.tools.get(tool.name)
            if old is not None and old.server_id != tool.server_id:
                raise ValueError(
                    f"Server '{old.server_id}' has a tool '{tool.name}' already; give one of the "
                    "two servers a prefix."
                )
            self.tools = {**self.tools, tool.name: tool}
            self.version += 1
        self._on_change()

    def remove(self, name: str) -> None:
        """Offer a tool no more.

        Raises:
            ValueError: There is none of that name.

        """
        self.known(name)
        with self._lock:
            self.tools = {key: tool for key, tool in self.tools.items() if key != name}
            self.version += 1
        self._on_change()

    def known(self, name: str) -> FakeTool:
        """Return a tool that a test names.

        Raises:
            ValueError: There is none of that name.

        """
        tool = self.tools.get(name)
        if tool is None:
            raise ValueError(self._not_found(name).message)
        return tool

    def find(self, name: str) -> FakeTool:
        """Return the tool behind an exposed or qualified name.

        Raises:
            Fault: TOOL_NOT_FOUND, with the nearest names.

        """
        tool = self.tools.get(name)
        if tool is None and ":" in name:
            tool = next((t for t in self.tools.values() if t.qualified_name == name), None)
        if tool is None:
            raise self._not_found(name)
        return tool

    def find_original(self, server_id: str, original_name: str) -> FakeTool:
        """Return a tool of a server.

        Raises:
            Fault: TOOL_NOT_FOUND.

        """
        return self.find(f"{server_id}:{original_name}")

    @property
    def leased(self) -> bool:
        """Whether a server's clients are leased, so that there is something to release."""
        return any(server.stateful for server in self.servers.values())

    def messages(self, servers: list[str]) -> list[catalog_pb2.Tool]:
        """Return what is listed, of some servers or of all, ordered by name."""
        found = [tool_message(t, self.servers[t.server_id]) for t in self.tools.values()]
        if self.leased:
            found += [_admin_message(name) for name in TOOL_DEFINITIONS]
        chosen = [one for one in found if not servers or one.server_id in servers]
        return sorted(chosen, key=lambda one: one.name)

    def _not_found(self, name: str) -> Fault:
        qualified = ":" in name
        known = [t.qualified_name if qualified else t.name for t in self.tools.values()]
        near = nearest(name, known)
        hint = f" Did you mean {' or '.join(repr(one) for one in near)}?" if near else ""
        return Fault(
            Reason.TOOL_NOT_FOUND,
            f"There is no tool '{name}'.{hint}",
            metadata={"nearest": ", ".join(near)},
        )


class FakeServer:
    """One server of a fake; `FakeLeaseway.server` makes it.

    Attributes:
        id: Its id.
        stateful: Whether each session leases a client of its own.
        prefix: What the exposed names of its tools begin with.
        state: What tools of a shared server remember.
    """

    def __init__(self, registry: Registry, server_id: str, *, stateful: bool, prefix: str) -> None:
        self._registry = registry
        self.id = server_id
        self.stateful = stateful
        self.prefix = prefix
        self.state: dict[str, Any] = {}
        registry.add_server(self)

    @overload
    def tool(self, function: FunctionT, /) -> FunctionT: ...

    @overload
    def tool(
        self,
        *,
        name: str | None = ...,
        description: str | None = ...,
        schema: Mapping[str, Any] | None = ...,
        output_schema: Mapping[str, Any] | None = ...,
        annotations: Mapping[str, Any] | None = ...,
    ) -> Callable[[FunctionT], FunctionT]: ...

    def tool(
        self,
        function: FunctionT | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> FunctionT | Callable[[FunctionT], FunctionT]:
        """Make a function a tool of this server, as a decorator with or without arguments.

        It may be async, and may have a parameter annotated with `CallContext`. An exception that
        it raises is a result with `is_error`; a `LeasewayError` is that error of the call.

        Args:
            function: What runs. One that is not async runs in a thread of its own.
            name: The tool's name without the prefix; None means the function's.
            description: What it does; None means the function's docstring.
            schema: The JSON Schema of its arguments, which it then gets as they are; None makes
                one of its parameters' types and gives it arguments of those types.
            output_schema: The JSON Schema of its structured results, or None.
            annotations: Hints, such as `{"readOnlyHint": True}`.

        Raises:
            ValueError: The name is taken, or none that tools may have.
            TypeError: No schema can be made of the parameters.

        """
        names = sys._getframe(1).f_locals  # tests define the types of arguments in functions

        def add(given: FunctionT) -> FunctionT:
            made = make_tool(
                self.id,
                self.prefix,
                given,
                name=name,
                description=description,
                schema=schema,
                output_schema=output_schema,
                annotations=annotations,
                names=names,
            )
            self._registry.add_tool(made)
            return given

        return add if function is None else add(function)


def tool_message(tool: FakeTool, server: FakeServer) -> catalog_pb2.Tool:
    """Return a tool for the wire."""
    return catalog_pb2.Tool(
        name=tool.name,
        original_name=tool.original_name,
        server_id=tool.server_id,
        description=tool.description,
        input_schema=json.dumps(tool.input_schema).encode(),
        output_schema=json.dumps(tool.output_schema).encode() if tool.output_schema else b"",
        annotations=json.dumps(tool.annotations).encode() if tool.annotations else b"",
        shared=not server.stateful,
    )


def _admin_message(name: str) -> catalog_pb2.Tool:
    definition = json.loads(TOOL_DEFINITIONS[name])
    return catalog_pb2.Tool(
        name=name,
        original_name=name,
        server_id=ADMIN_TOOLSET,
        title=definition["title"],
        description=definition["description"],
        input_schema=json.dumps(definition["inputSchema"]).encode(),
        annotations=json.dumps(definition["annotations"]).encode(),
        shared=True,
    )
