"""What a tenant sees: the parts of the clients that list tools, prompts and resources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

from leaseway.sdk import listing
from leaseway.sdk.background import background
from leaseway.sdk.operations import perform
from leaseway.sdk.prompts import PromptList
from leaseway.sdk.resources import ResourceList, ResourceTemplateList
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.tools import ToolList

__all__ = ["AsyncCatalog", "Catalog"]


class AsyncCatalog(ABC):
    """The part of `AsyncClient` that lists."""

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


class Catalog:
    """The same of `Client`."""

    _inner: AsyncCatalog

    def list_tools(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ToolList:
        """List the tools that the tenant sees; see `AsyncClient.list_tools`."""
        inner = self._inner
        return background().run(lambda: inner.list_tools(servers, timeout=timeout))

    def list_prompts(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> PromptList:
        """List the prompts that the tenant sees; see `AsyncClient.list_prompts`."""
        inner = self._inner
        return background().run(lambda: inner.list_prompts(servers, timeout=timeout))

    def list_resources(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ResourceList:
        """List the resources that the tenant sees; see `AsyncClient.list_resources`."""
        inner = self._inner
        return background().run(lambda: inner.list_resources(servers, timeout=timeout))

    def list_resource_templates(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ResourceTemplateList:
        """List the templates that the tenant sees; see `AsyncClient.list_resource_templates`."""
        inner = self._inner
        return background().run(lambda: inner.list_resource_templates(servers, timeout=timeout))
