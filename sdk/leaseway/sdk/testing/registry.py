"""The servers of a fake, and the tools, prompts and resources that each one serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from leaseway.data_plane.core.ports import ListedPromptsResources
from leaseway.sdk.testing.functions import FakeTool
from leaseway.sdk.testing.prompts_resources import FakePrompt, FakeResource, FakeTemplate
from leaseway.spec.kinds.process import ProcessPart
from leaseway.spec.model import InstancePolicy, ServerSpec, Transform, VariantKey
from leaseway.spec.policy import ServerPolicy
from leaseway.wire.bounds import MAX_LEASES
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.admin import ADMIN_TOOLSET
from leaseway.wire.names import is_valid_name, nearest

ItemT = TypeVar("ItemT")


@dataclass(eq=False)
class Offers:
    """What one server serves. A change replaces a dict, so readers need no lock.

    Attributes:
        instructions: What the server tells models about its use.
        extensions: The identifiers of its MCP extensions.
        state: The `CallContext.state` of a shared server.
        tools: By original name, as are the prompts.
        resources: By URI.
        templates: By template.
    """

    id: str
    stateful: bool
    prefix: str
    instructions: str = ""
    extensions: tuple[str, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, FakeTool] = field(default_factory=dict)
    prompts: dict[str, FakePrompt] = field(default_factory=dict)
    resources: dict[str, FakeResource] = field(default_factory=dict)
    templates: dict[str, FakeTemplate] = field(default_factory=dict)

    # These four raise a Fault, TOOL_NOT_FOUND, if the test has removed the item meanwhile.

    def tool(self, original_name: str) -> FakeTool:
        """Return a tool."""
        return _require(self.tools.get(original_name), f"tool '{self.id}:{original_name}'")

    def prompt(self, original_name: str) -> FakePrompt:
        """Return a prompt."""
        return _require(self.prompts.get(original_name), f"prompt '{original_name}'")

    def template(self, template: str) -> FakeTemplate:
        """Return a resource template."""
        return _require(self.templates.get(template), f"template '{template}'")

    def resource(self, uri: str) -> FakeResource:
        """Return a listed resource, or one that the first matching template describes."""
        resource = self.resources.get(uri)
        for template in sorted(self.templates):
            resource = resource or self.templates[template].resource(uri)
        return _require(resource, f"resource '{uri}'")

    def definitions(self) -> dict[str, bytes]:
        """Return the tools as the server lists them, by original name."""
        return {name: json.dumps(tool.definition).encode() for name, tool in self.tools.items()}

    def prompts_resources(self) -> ListedPromptsResources:
        """Return the prompts, resources and templates as the server lists them."""
        return ListedPromptsResources(
            prompts=_encode(self.prompts.values()),
            resources=_encode(self.resources.values()),
            templates=_encode(self.templates.values()),
        )

    def capabilities(self) -> tuple[str, ...]:
        """Return what it has beside tools, as MCP names it; any function may log."""
        return (
            *(("completions",) if self.prompts or self.templates else ()),
            "logging",
            *(("prompts",) if self.prompts else ()),
            *(("resources", "subscribe") if self.resources or self.templates else ()),
        )

    def spec(self) -> ServerSpec:
        """Return the server as a configuration describes it."""
        risky = [name for name, tool in self.tools.items() if tool.needs_approval]
        return ServerSpec(
            VariantKey(self.id),
            "stdio",
            ProcessPart(command="a function"),
            truely_stateless=not self.stateful,
            instances=InstancePolicy(max_instances=MAX_LEASES),
            transforms=(Transform("prefix", self.prefix),) if self.prefix else (),
            policy=ServerPolicy(risks=tuple((name, "financial") for name in risky)),
        )


class FakeRegistry:
    """The servers of a fake. Thread-safe.

    Args:
        on_change: Called after each change, in the thread that made it.

    Attributes:
        version: Incremented at each change.
        servers: The servers by id.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self.version = 1
        self.servers: dict[str, Offers] = {}

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._lock:
            yield
            self.version += 1
        self._on_change()

    def add_server(self, server: Offers) -> None:
        """Add a server.

        Raises:
            ValueError: Its id is taken or invalid.
        """
        if not is_valid_name(server.id) or server.id == ADMIN_TOOLSET:
            raise ValueError(
                f"'{server.id}' is no id for a server: use 1 to 64 of a-z, A-Z, 0-9, _ and -, but "
                f"not {ADMIN_TOOLSET}."
            )
        with self._change():
            if server.id in self.servers:
                raise ValueError(f"There is a server '{server.id}' already; add tools to that one.")
            self.servers = {**self.servers, server.id: server}

    def add_tool(self, server: Offers, tool: FakeTool) -> None:
        """Add a tool, or replace the server's tool of the same name.

        Raises:
            ValueError: Another server has a tool of this name.
        """
        with self._change():
            owner = self._find_owner(tool.name)
            if owner is not None and owner is not server:
                raise ValueError(
                    f"Server '{owner.id}' has a tool '{tool.name}' already; give one of the two "
                    "servers a prefix."
                )
            server.tools = {**server.tools, tool.original_name: tool}

    def add_prompt(self, server: Offers, prompt: FakePrompt) -> None:
        """Add a prompt, or replace the server's prompt of the same name."""
        with self._change():
            server.prompts = {**server.prompts, prompt.original_name: prompt}

    def add_resource(self, server: Offers, resource: FakeResource) -> None:
        """Add a resource, or replace the server's resource of the same URI."""
        with self._change():
            server.resources = {**server.resources, resource.uri: resource}

    def add_template(self, server: Offers, template: FakeTemplate) -> None:
        """Add a resource template, or replace the server's equal one."""
        with self._change():
            server.templates = {**server.templates, template.template: template}

    def remove_tool(self, name: str) -> None:
        """Remove a tool by its exposed name.

        Raises:
            ValueError: There is no such tool.
        """
        self.check_tool(name)
        with self._change():
            for server in self.servers.values():
                server.tools = {
                    key: tool for key, tool in server.tools.items() if tool.name != name
                }

    def check_tool(self, name: str) -> None:
        """Raise a ValueError, with the nearest names, if no tool has this exposed name."""
        if self._find_owner(name) is None:
            names = [
                tool.name for server in self.servers.values() for tool in server.tools.values()
            ]
            near = " or ".join(repr(candidate) for candidate in nearest(name, names))
            hint = f" Did you mean {near}?" if near else ""
            raise ValueError(f"There is no tool '{name}'.{hint}")

    def _find_owner(self, name: str) -> Offers | None:
        for server in self.servers.values():
            if any(tool.name == name for tool in server.tools.values()):
                return server
        return None


def _encode(items: Iterable[FakePrompt | FakeResource | FakeTemplate]) -> tuple[bytes, ...]:
    return tuple(json.dumps(item.definition).encode() for item in items)


def _require(item: ItemT | None, subject: str) -> ItemT:
    if item is None:
        raise Fault(Reason.TOOL_NOT_FOUND, f"There is no {subject}.")
    return item
