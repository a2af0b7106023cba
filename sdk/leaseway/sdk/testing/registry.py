"""What a fake offers: servers and their tools, by exposed and by qualified name."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from leaseway.sdk.testing.functions import FakeTool
from leaseway.sdk.testing.offers import FakePrompt, FakeResource, FakeTemplate
from leaseway.v1 import catalog_pb2
from leaseway.wire.admin import ADMIN_TOOLSET, TOOL_DEFINITIONS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import is_valid_name, nearest

OfferT = TypeVar("OfferT", bound="FakeResource | FakeTemplate")


class Offering(Protocol):
    """A server, as far as the registry needs to know it."""

    id: str
    stateful: bool
    state: dict[str, Any]


class Registry:
    """Everything that a fake offers at one version; may be changed from any thread.

    Args:
        on_change: Called after each change, in the thread that made it.

    Attributes:
        version: The registry version.
        servers: The servers by id.
        tools: The tools by exposed name.
        prompts: The prompts by exposed name.
        resources: The resources by server and URI.
        templates: The templates of resources by server and template.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self.version = 1
        self.servers: dict[str, Offering] = {}
        self.tools: dict[str, FakeTool] = {}
        self.prompts: dict[str, FakePrompt] = {}
        self.resources: dict[tuple[str, str], FakeResource] = {}
        self.templates: dict[tuple[str, str], FakeTemplate] = {}

    def add_server(self, server: Offering) -> None:
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

    def add_prompt(self, prompt: FakePrompt) -> None:
        """Offer a prompt; one of the same name is replaced."""
        with self._lock:
            self.prompts = {**self.prompts, prompt.name: prompt}
            self.version += 1
        self._on_change()

    def add_resource(self, resource: FakeResource) -> None:
        """Offer a resource; one of the same server and URI is replaced."""
        with self._lock:
            self.resources = {**self.resources, (resource.server_id, resource.uri): resource}
            self.version += 1
        self._on_change()

    def add_template(self, template: FakeTemplate) -> None:
        """Offer a template of resources; one of the same server and text is replaced."""
        with self._lock:
            key = template.server_id, template.template
            self.templates = {**self.templates, key: template}
            self.version += 1
        self._on_change()

    def find_prompt(self, server_id: str, name: str) -> FakePrompt:
        """Return the prompt behind an exposed, qualified or, of a server, original name.

        Raises:
            Fault: TOOL_NOT_FOUND, with the nearest names.

        """
        for prompt in self.prompts.values():
            names = {prompt.name, prompt.qualified_name}
            if server_id:
                names.add(prompt.original_name)
            if name in names and server_id in ("", prompt.server_id):
                return prompt
        raise _missing("prompt", name, self.prompts)

    def find_resource(self, server_id: str, uri: str) -> FakeResource:
        """Return the resource of a URI, one that is listed or that a template stands for.

        Of several servers that of the smallest id is meant.

        Raises:
            Fault: TOOL_NOT_FOUND, with the nearest URIs.

        """
        for (owner, known), resource in _ordered(self.resources):
            if known == uri and server_id in ("", owner):
                return resource
        for (owner, _), template in _ordered(self.templates):
            stood_for = template.resource(uri)
            if stood_for is not None and server_id in ("", owner):
                return stood_for
        raise _missing("resource", uri, [known for _, known in self.resources])

    def find_template(self, server_id: str, text: str) -> FakeTemplate:
        """Return a template of a server.

        Raises:
            Fault: TOOL_NOT_FOUND, with the nearest templates.

        """
        template = self.templates.get((server_id, text))
        if template is None:
            raise _missing("template", text, [known for _, known in self.templates])
        return template

    def prompt_messages(self, servers: list[str]) -> list[catalog_pb2.Prompt]:
        """Return the prompts of some servers or of all, ordered by name."""
        chosen = [one for one in self.prompts.values() if not servers or one.server_id in servers]
        found = [one.message(shared=not self.servers[one.server_id].stateful) for one in chosen]
        return sorted(found, key=lambda one: one.name)

    def resource_messages(self, servers: list[str]) -> list[catalog_pb2.Resource]:
        """Return the resources of some servers or of all by server and URI, then the templates."""
        offers: list[tuple[tuple[str, str], FakeResource | FakeTemplate]] = [
            *_ordered(self.resources),
            *_ordered(self.templates),
        ]
        return [
            one.message(shared=not self.servers[server_id].stateful)
            for (server_id, _), one in offers
            if not servers or server_id in servers
        ]

    def check_servers(self, servers: list[str]) -> None:
        """See to it that servers exist.

        Raises:
            Fault: TOOL_NOT_FOUND, with the nearest ids.

        """
        for server_id in servers:
            if server_id not in self.servers and server_id != ADMIN_TOOLSET:
                raise _missing("server", server_id, self.servers)

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
        found = [_tool_message(t, self.servers[t.server_id]) for t in self.tools.values()]
        if self.leased:
            found += [_admin_message(name) for name in TOOL_DEFINITIONS]
        chosen = [one for one in found if not servers or one.server_id in servers]
        return sorted(chosen, key=lambda one: one.name)

    def _not_found(self, name: str) -> Fault:
        qualified = ":" in name
        known = [t.qualified_name if qualified else t.name for t in self.tools.values()]
        return _missing("tool", name, known)


def _ordered(
    offers: Mapping[tuple[str, str], OfferT],
) -> list[tuple[tuple[str, str], OfferT]]:
    return sorted(offers.items(), key=lambda one: one[0])


def _tool_message(tool: FakeTool, server: Offering) -> catalog_pb2.Tool:
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


def _missing(what: str, name: str, known: Iterable[str]) -> Fault:
    near = nearest(name, known)
    hint = f" Did you mean {' or '.join(repr(one) for one in near)}?" if near else ""
    return Fault(
        Reason.TOOL_NOT_FOUND,
        f"There is no {what} '{name}'.{hint}",
        metadata={"nearest": ", ".join(near)},
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
