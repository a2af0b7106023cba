"""What a fake offers: servers and their tools, by exposed and by qualified name."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from leaseway.data_plane.core.ports import PromptsResources
from leaseway.sdk.testing.functions import FakeTool
from leaseway.sdk.testing.prompts_resources import FakePrompt, FakeResource, FakeTemplate
from leaseway.spec.model import InstancePolicy, ServerSpec, Transform, VariantKey
from leaseway.spec.policy import ServerPolicy
from leaseway.wire.bounds import MAX_LEASES
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.admin import ADMIN_TOOLSET
from leaseway.wire.names import is_valid_name, nearest

OfferT = TypeVar("OfferT", bound="FakeResource | FakeTemplate")


class Offering(Protocol):
    """A server, as far as the registry needs to know it."""

    id: str
    stateful: bool
    prefix: str
    state: dict[str, Any]


class FakeRegistry:
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

    # As servers list it, and as a configuration names them.

    def specs(self) -> list[ServerSpec]:
        """Return the servers, each as a configuration would have it."""
        return [
            ServerSpec(
                VariantKey(server.id),
                "stdio",
                truely_stateless=not server.stateful,
                command="a function",
                instances=InstancePolicy(max_instances=MAX_LEASES),
                transforms=(Transform("prefix", server.prefix),) if server.prefix else (),
                policy=self._policy(server.id),
            )
            for server in self.servers.values()
        ]

    def _policy(self, server_id: str) -> ServerPolicy:
        names = [
            tool.original_name
            for tool in self.tools.values()
            if tool.server_id == server_id and tool.needs_approval
        ]
        return ServerPolicy(risks=tuple((name, "financial") for name in names))

    def definitions(self, server_id: str) -> dict[str, bytes]:
        """Return the definitions of a server's tools, by original name."""
        return {
            tool.original_name: json.dumps(tool.definition).encode()
            for tool in self.tools.values()
            if tool.server_id == server_id
        }

    def prompts_resources(self, server_id: str) -> PromptsResources:
        """Return the definitions of what else a server offers."""
        return PromptsResources(
            prompts=_definitions(self.prompts.values(), server_id),
            resources=_definitions(self.resources.values(), server_id),
            templates=_definitions(self.templates.values(), server_id),
        )

    def _not_found(self, name: str) -> Fault:
        qualified = ":" in name
        known = [t.qualified_name if qualified else t.name for t in self.tools.values()]
        return _missing("tool", name, known)


def _ordered(
    prompts_resources: Mapping[tuple[str, str], OfferT],
) -> list[tuple[tuple[str, str], OfferT]]:
    return sorted(prompts_resources.items(), key=lambda one: one[0])


def _definitions(
    prompts_resources: Iterable[FakePrompt | FakeResource | FakeTemplate], server_id: str
) -> tuple[bytes, ...]:
    return tuple(
        json.dumps(o.definition).encode() for o in prompts_resources if o.server_id == server_id
    )


def _missing(what: str, name: str, known: Iterable[str]) -> Fault:
    near = nearest(name, known)
    hint = f" Did you mean {' or '.join(repr(one) for one in near)}?" if near else ""
    return Fault(
        Reason.TOOL_NOT_FOUND,
        f"There is no {what} '{name}'.{hint}",
        metadata={"nearest": ", ".join(near)},
    )
