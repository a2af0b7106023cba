"""The client's lists: tools, prompts, resources, instructions; each at one registry version."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from leaseway.sdk.catalog.introductions import IntroductionList, introduction_from_proto
from leaseway.sdk.catalog.lease_items import LeaseItems, with_lease_items
from leaseway.sdk.catalog.prompts_resources import (
    PromptList,
    ResourceList,
    ResourceTemplateList,
    prompt_from_proto,
    resource_from_proto,
    template_from_proto,
)
from leaseway.sdk.catalog.search import ToolIndex
from leaseway.sdk.catalog.tools import (
    CatalogList,
    ItemT,
    MessageT,
    SharedItems,
    Tool,
    ToolList,
    tool_from_proto,
    tool_list,
)
from leaseway.sdk.errors import ToolNotFound
from leaseway.sdk.operators.operations import perform
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.transport.control import Rpc
from leaseway.sdk.validation import check_count, check_ids, check_text
from leaseway.v1 import catalog_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.listing.definitions import ListKind
from leaseway.wire.listing.pages import Page, every_page

_MAX_RESTARTS: Final = 5


class _Page(Page, Protocol):
    @property
    def registry_version(self) -> int: ...


PageT = TypeVar("PageT", bound=_Page)
CatalogListT = TypeVar("CatalogListT", bound=CatalogList[Any])
CatalogListT_co = TypeVar("CatalogListT_co", bound=CatalogList[Any], covariant=True)
_Request: TypeAlias = (
    catalog_pb2.ListToolsRequest
    | catalog_pb2.ListPromptsRequest
    | catalog_pb2.ListResourcesRequest
    | catalog_pb2.ListIntroductionsRequest
)


class Fetch(Protocol[CatalogListT_co]):
    """Reads a list of all, such as `fetch_tools`."""

    async def __call__(
        self,
        runtime: Runtime,
        deadline: float,
        *,
        servers: Sequence[str] | None,
        user: str | None = None,
        shared: SharedItems | None = None,
    ) -> CatalogListT_co:
        """Read it."""


async def fetch_tools(
    runtime: Runtime,
    deadline: float,
    *,
    servers: Sequence[str] | None,
    user: str | None = None,
    shared: SharedItems | None = None,
) -> ToolList:
    """List the tools that the tenant sees; with `shared`, equal ones are one object.

    Raises:
        Fault: The control plane cannot be reached, or the registry changes faster than all pages
            of one version can be read.
    """
    catalog = runtime.control.catalog
    request = catalog_pb2.ListToolsRequest(servers=check_ids("servers", servers))
    pages = await _all_pages(runtime, catalog.ListTools, request, deadline, user)
    tools = map(_maker(tool_from_proto, shared), (tool for page in pages for tool in page.tools))
    return tool_list(tools, pages[-1])


async def fetch_prompts(
    runtime: Runtime,
    deadline: float,
    *,
    servers: Sequence[str] | None,
    user: str | None = None,
    shared: SharedItems | None = None,
) -> PromptList:
    """List the prompts that the tenant sees; raises as `fetch_tools`."""
    catalog = runtime.control.catalog
    request = catalog_pb2.ListPromptsRequest(servers=check_ids("servers", servers))
    pages = await _all_pages(runtime, catalog.ListPrompts, request, deadline, user)
    convert = _maker(prompt_from_proto, shared)
    prompts = (convert(prompt) for page in pages for prompt in page.prompts)
    return PromptList(prompts, pages[-1].registry_version, pages[-1].pending)


async def fetch_resources(
    runtime: Runtime,
    deadline: float,
    *,
    servers: Sequence[str] | None,
    user: str | None = None,
    shared: SharedItems | None = None,
) -> ResourceList:
    """List the resources that the tenant sees; raises as `fetch_tools`."""
    messages, last = await _fetch_resources(runtime, deadline, servers, user)
    convert = _maker(resource_from_proto, shared)
    resources = (convert(message) for message in messages if not message.is_template)
    return ResourceList(resources, last.registry_version, last.pending)


async def fetch_templates(
    runtime: Runtime,
    deadline: float,
    *,
    servers: Sequence[str] | None,
    user: str | None = None,
    shared: SharedItems | None = None,
) -> ResourceTemplateList:
    """List the resource templates that the tenant sees; raises as `fetch_tools`."""
    messages, last = await _fetch_resources(runtime, deadline, servers, user)
    convert = _maker(template_from_proto, shared)
    templates = (convert(message) for message in messages if message.is_template)
    return ResourceTemplateList(templates, last.registry_version, last.pending)


def _maker(
    convert: Callable[[MessageT], ItemT], shared: SharedItems | None
) -> Callable[[MessageT], ItemT]:
    return convert if shared is None else shared.sharing(convert)


_FETCHES: Final[Mapping[str, Fetch[CatalogList[Any]]]] = {
    "tools": fetch_tools,
    "prompts": fetch_prompts,
    "resources": fetch_resources,
    "templates": fetch_templates,
}


async def list_shared(client: AsyncListings, kind: str, shared: SharedItems) -> CatalogList[Any]:
    """List what the tenant sees of a `ListKind`, as `AsyncClient.list_tools`, of shared items."""
    fetch = partial(_FETCHES[kind], servers=None, shared=shared)
    return await perform(client._scope, fetch, None)


async def fetch_of_session(
    runtime: Runtime,
    deadline: float,
    *,
    kind: ListKind,
    fetch: Fetch[CatalogListT],
    session: str,
    servers: Sequence[str] | None,
    user: str | None = None,
) -> CatalogListT:
    """List what a session sees, with what only its leases list; raises as `fetch_tools`.

    Args:
        runtime: The client's runtime.
        deadline: When the request fails, in the event loop's time.
        kind: Which list is read.
        fetch: Reads the list of all.
        session: The session.
        servers: Only items of these servers; None means all.
        user: The user for whom is listed; None means the client's.
    """
    items = await fetch(runtime, deadline, servers=servers, user=user)
    leases = await runtime.caller.own_lists.of_session(session, kind, of_others=True)
    return with_own(items, kind, leases.values(), servers)


def with_own(
    items: CatalogListT,
    kind: ListKind,
    leases: Iterable[LeaseItems[Any] | None],
    servers: Sequence[str] | None,
) -> CatalogListT:
    """Return what a session sees of one list.

    Args:
        items: The list of all.
        kind: Which list it is.
        leases: In what the session's leases differ; None for one that does not.
        servers: Only items of these servers; None means all.
    """
    own = [lease for lease in leases if lease and (servers is None or lease.server_id in servers)]
    if not own:
        return items
    seen = {"items": with_lease_items(kind, items, own)}
    return type(items)(**(items._asdict() | seen))


async def fetch_introductions(
    runtime: Runtime, deadline: float, *, servers: Sequence[str] | None
) -> IntroductionList:
    """List what the servers that the tenant sees say about themselves; raises as `fetch_tools`."""
    catalog = runtime.control.catalog
    request = catalog_pb2.ListIntroductionsRequest(servers=check_ids("servers", servers))
    pages = await _all_pages(runtime, catalog.ListIntroductions, request, deadline)
    said = (
        introduction_from_proto(introduction)
        for page in pages
        for introduction in page.introductions
    )
    return IntroductionList(said, pages[-1].registry_version, pages[-1].pending)


async def _fetch_resources(
    runtime: Runtime, deadline: float, servers: Sequence[str] | None, user: str | None
) -> tuple[Iterator[catalog_pb2.Resource], catalog_pb2.ListResourcesResponse]:
    """Return the resources and templates of all pages, and the last page."""
    request = catalog_pb2.ListResourcesRequest(servers=check_ids("servers", servers))
    pages = await _all_pages(
        runtime, runtime.control.catalog.ListResources, request, deadline, user
    )
    return (message for page in pages for message in page.resources), pages[-1]


async def _all_pages(
    runtime: Runtime,
    rpc: Rpc[PageT],
    request: _Request,
    deadline: float,
    user: str | None = None,
) -> list[PageT]:
    """Read all pages of a list; start again if the registry changes meanwhile."""
    user = runtime.identity.user if user is None else user
    request.client.CopyFrom(runtime.identity.client_info_for(user))
    request.tenant = runtime.identity.tenant

    async def read(token: str) -> PageT:
        request.page_token = token
        return await runtime.control.request(rpc, request, deadline)

    for _ in range(_MAX_RESTARTS):
        pages: list[PageT] = []
        async with aclosing(every_page(read)) as listed:
            async for page in listed:
                pages.append(page)
                if page.registry_version != pages[0].registry_version:
                    break
            else:
                return pages
    raise Fault(
        Reason.OVERLOADED,
        f"The registry changed {_MAX_RESTARTS} times while its pages were read; try again.",
    )


class AsyncListings(ABC):
    """The methods of `AsyncClient` that list tools, prompts, resources and instructions."""

    _index: tuple[ToolList, ToolIndex] | None = None
    """The last search index, after the tools that it was built from."""

    @abstractmethod
    def _scope(self) -> tuple[Runtime, str]:
        """Return the client's runtime and its own session.

        Raises:
            RuntimeError: The client is closed.
        """

    async def list_tools(
        self,
        servers: Sequence[str] | None = None,
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> ToolList:
        """List the tools that the tenant sees, ordered by name.

        Args:
            servers: Only tools of these server ids; None means all servers.
            user: The tenant's user for whom servers that act for users are listed, as in
                `session`; None means the client's.
            timeout: Seconds until the request fails; None means 30.

        Raises:
            ToolNotFound: One of the servers does not exist; the message names the nearest ids.
            LeasewayError: The request failed otherwise.
        """
        return await perform(self._scope, partial(fetch_tools, servers=servers, user=user), timeout)

    async def search_tools(
        self,
        query: str,
        limit: int = 5,
        *,
        servers: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> list[Tool]:
        """Search the tools by their purpose; return the best matches first.

        Tools are ranked by BM25 over names, descriptions and parameters. A model that is offered
        this method, `describe_tool` and `call_tool` needs three definitions instead of those of all
        tools.

        Args:
            query: What the tool must do, in words; the first 2,000 characters are used.
            limit: The maximum number of tools.
            servers: As for `list_tools`.
            timeout: As for `list_tools`.

        Raises:
            ToolNotFound: One of the servers does not exist; the message names the nearest ids.
            LeasewayError: The request failed otherwise.
        """
        check_text("query", query)
        check_count("limit", limit)
        tools = await self.list_tools(servers, timeout=timeout)
        known = self._index
        if known is None or known[0] != tools:
            # The index of thousands of tools takes a second.
            known = self._index = (tools, await asyncio.to_thread(ToolIndex, tools))
        return known[1].search(query, limit)

    async def describe_tool(self, name: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Return a tool's MCP definition, without empty members.

        Args:
            name: The tool's name, or its qualified name (`server:tool`).
            timeout: As for `list_tools`.

        Raises:
            ToolNotFound: There is no such tool.
            LeasewayError: The request failed otherwise.
        """
        check_text("name", name)
        for tool in await self.list_tools(timeout=timeout):
            if name in (tool.name, tool.qualified_name):
                return tool.definition()
        raise ToolNotFound(f"There is no tool '{name[:100]}'; search_tools finds tools.")

    async def list_prompts(
        self,
        servers: Sequence[str] | None = None,
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> PromptList:
        """List the prompts that the tenant sees, ordered by name.

        The parameters and errors are those of `list_tools`.
        """
        return await perform(
            self._scope, partial(fetch_prompts, servers=servers, user=user), timeout
        )

    async def list_resources(
        self,
        servers: Sequence[str] | None = None,
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> ResourceList:
        """List the resources that the tenant sees, ordered by server and URI.

        Servers may have resources that they do not list; see `list_resource_templates`. The
        parameters and errors are those of `list_tools`.
        """
        return await perform(
            self._scope, partial(fetch_resources, servers=servers, user=user), timeout
        )

    async def list_resource_templates(
        self,
        servers: Sequence[str] | None = None,
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> ResourceTemplateList:
        """List the resource templates that the tenant sees, ordered by server and template.

        The parameters and errors are those of `list_tools`.
        """
        return await perform(
            self._scope, partial(fetch_templates, servers=servers, user=user), timeout
        )

    async def instructions(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, str]:
        """Return what servers tell models about their use, by server id, ordered by id.

        It is the text of the server's `instructions`, at most 16,384 characters, as the server
        wrote it: give it to a model only with tools of that server. A server without instructions
        is missing, and so is one of which the tenant is granted only some tools. The parameters
        and errors are those of `list_tools`.
        """
        found = await perform(self._scope, partial(fetch_introductions, servers=servers), timeout)
        return {
            introduction.server_id: introduction.instructions
            for introduction in found
            if introduction.instructions
        }
