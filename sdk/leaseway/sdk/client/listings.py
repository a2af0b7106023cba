"""Reading the control plane's lists, page by page, at one registry version each.

What a tenant sees: the parts of the clients that list tools, prompts and resources.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from leaseway.sdk.catalog.prompts_resources import (
    PromptList,
    ResourceList,
    ResourceTemplateList,
    prompt_from_wire,
    resource_from_wire,
    template_from_wire,
)
from leaseway.sdk.catalog.search import ToolIndex
from leaseway.sdk.catalog.tools import Tool, ToolList, tools_from_wire
from leaseway.sdk.client import listings as listing
from leaseway.sdk.errors import ToolNotFound
from leaseway.sdk.operators.operations import perform
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.control import Rpc
from leaseway.sdk.validation import check_count, check_ids, check_text
from leaseway.v1 import catalog_pb2
from leaseway.wire.errors import Fault, Reason

_MAX_RESTARTS: Final = 5


class _Page(Protocol):
    @property
    def registry_version(self) -> int: ...

    @property
    def next_page_token(self) -> str: ...


PageT = TypeVar("PageT", bound=_Page)
_Request: TypeAlias = (
    catalog_pb2.ListToolsRequest | catalog_pb2.ListPromptsRequest | catalog_pb2.ListResourcesRequest
)


async def fetch_tools(
    runtime: Runtime, deadline: float, *, servers: Sequence[str] | None
) -> ToolList:
    """List the tools that the tenant sees, all pages at one registry version.

    Raises:
        Fault: The control plane cannot be reached, or the registry moves faster than its pages
            can be read.
    """
    catalog = runtime.control.catalog
    request = catalog_pb2.ListToolsRequest(servers=check_ids("servers", servers))
    pages = await _all_pages(runtime, catalog.ListTools, request, deadline)
    return tools_from_wire((tool for each in pages for tool in each.tools), pages[-1])


async def fetch_prompts(
    runtime: Runtime, deadline: float, *, servers: Sequence[str] | None
) -> PromptList:
    """List the prompts in the same way."""
    catalog = runtime.control.catalog
    request = catalog_pb2.ListPromptsRequest(servers=check_ids("servers", servers))
    pages = await _all_pages(runtime, catalog.ListPrompts, request, deadline)
    prompts = (prompt_from_wire(prompt) for each in pages for prompt in each.prompts)
    return PromptList(prompts, pages[-1].registry_version, pages[-1].pending)


async def fetch_resources(
    runtime: Runtime, deadline: float, *, servers: Sequence[str] | None
) -> ResourceList:
    """List the resources in the same way."""
    pages = await _resource_pages(runtime, deadline, servers)
    found = (one for each in pages for one in each.resources if not one.is_template)
    last = pages[-1]
    return ResourceList(map(resource_from_wire, found), last.registry_version, last.pending)


async def fetch_templates(
    runtime: Runtime, deadline: float, *, servers: Sequence[str] | None
) -> ResourceTemplateList:
    """List the templates of resources in the same way."""
    pages = await _resource_pages(runtime, deadline, servers)
    found = (one for each in pages for one in each.resources if one.is_template)
    last = pages[-1]
    return ResourceTemplateList(map(template_from_wire, found), last.registry_version, last.pending)


async def _resource_pages(
    runtime: Runtime, deadline: float, servers: Sequence[str] | None
) -> list[catalog_pb2.ListResourcesResponse]:
    request = catalog_pb2.ListResourcesRequest(servers=check_ids("servers", servers))
    return await _all_pages(runtime, runtime.control.catalog.ListResources, request, deadline)


async def _all_pages(
    runtime: Runtime, rpc: Rpc[PageT], request: _Request, deadline: float
) -> list[PageT]:
    """Read all pages of a list; begin anew where the registry moves meanwhile."""
    request.client.CopyFrom(runtime.identity.client_info)
    request.tenant = runtime.identity.tenant

    async def read(token: str) -> PageT:
        request.page_token = token
        return await runtime.control.ask(rpc, request, deadline)

    for _ in range(_MAX_RESTARTS):
        pages = [await read("")]
        while pages[-1].registry_version == pages[0].registry_version:
            if not pages[-1].next_page_token:
                return pages
            pages.append(await read(pages[-1].next_page_token))
    raise Fault(
        Reason.OVERLOADED,
        f"The registry changed {_MAX_RESTARTS} times while its pages were read; try again.",
    )


class AsyncCatalog(ABC):
    """The part of `AsyncClient` that lists."""

    _index: tuple[tuple[int, tuple[str, ...] | None], ToolIndex] | None = None
    """What was searched last, with the registry version and the servers that it is of."""

    @abstractmethod
    def _at(self) -> tuple[Runtime, str]:
        """Return the client's working parts and its own session.

        Raises:
            RuntimeError: The client is closed.
        """

    async def list_tools(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ToolList:
        """List the tools that the tenant sees, ordered by name.

        Args:
            servers: Only tools of these server ids; None means all.
            timeout: Seconds until the request is given up; None means 30.

        Raises:
            ToolNotFound: There is no server of such an id; the message names the nearest.
            LeasewayError: It failed otherwise.
        """
        return await perform(self._at, partial(listing.fetch_tools, servers=servers), timeout)

    async def search_tools(
        self,
        query: str,
        limit: int = 5,
        *,
        servers: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> list[Tool]:
        """Find tools by what they are for, the best first.

        Ranked by BM25 over names, descriptions and parameters. Needs the package `rank-bm25`
        (the extra `search`). With `describe_tool` and `call_tool` a model can do with three
        definitions instead of all.

        Args:
            query: What the tool is to do, in words; its first 2,000 characters count.
            limit: The most tools.
            servers: Only tools of these server ids; None means all.
            timeout: Seconds until the request is given up; None means 30.

        Raises:
            ToolNotFound: There is no server of such an id; the message names the nearest.
            ImportError: `rank-bm25` is not installed.
            LeasewayError: It failed otherwise.
        """
        check_text("query", query)
        check_count("limit", limit)
        tools = await self.list_tools(servers, timeout=timeout)
        of = (tools.registry_version, tuple(servers) if servers is not None else None)
        if self._index is None or self._index[0] != of:
            self._index = (of, ToolIndex(tools))
        return self._index[1].search(query, limit)

    async def describe_tool(self, name: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Return a tool's definition as MCP has it, without empty members.

        Args:
            name: The tool's name, or its qualified name (`server:tool`).
            timeout: Seconds until the request is given up; None means 30.

        Raises:
            ToolNotFound: There is no such tool.
            LeasewayError: It failed otherwise.
        """
        check_text("name", name)
        for tool in await self.list_tools(timeout=timeout):
            if name in (tool.name, tool.qualified_name):
                return tool.definition()
        raise ToolNotFound(f"There is no tool '{name[:100]}'; search_tools finds others.")

    async def list_prompts(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> PromptList:
        """List the prompts that the tenant sees, ordered by name.

        Args:
            servers: Only prompts of these server ids; None means all.
            timeout: Seconds until the request is given up; None means 30.

        Raises:
            ToolNotFound: There is no server of such an id; the message names the nearest.
            LeasewayError: It failed otherwise.
        """
        return await perform(self._at, partial(listing.fetch_prompts, servers=servers), timeout)

    async def list_resources(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ResourceList:
        """List the resources that the tenant sees, ordered by server and URI.

        Servers may have resources that they do not list; see `list_resource_templates`.

        Args:
            servers: Only resources of these server ids; None means all.
            timeout: Seconds until the request is given up; None means 30.

        Raises:
            ToolNotFound: There is no server of such an id; the message names the nearest.
            LeasewayError: It failed otherwise.
        """
        return await perform(self._at, partial(listing.fetch_resources, servers=servers), timeout)

    async def list_resource_templates(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ResourceTemplateList:
        """List the templates of resources that the tenant sees, ordered by server and template.

        Args:
            servers: Only templates of these server ids; None means all.
            timeout: Seconds until the request is given up; None means 30.

        Raises:
            ToolNotFound: There is no server of such an id; the message names the nearest.
            LeasewayError: It failed otherwise.
        """
        return await perform(self._at, partial(listing.fetch_templates, servers=servers), timeout)
