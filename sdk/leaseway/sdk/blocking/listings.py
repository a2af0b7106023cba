"""The listings of the synchronous client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leaseway.sdk.blocking.loop_thread import background
from leaseway.sdk.catalog.prompts_resources import PromptList, ResourceList, ResourceTemplateList
from leaseway.sdk.catalog.tools import Tool, ToolList
from leaseway.sdk.client.listings import AsyncCatalog


class Catalog:
    """The same of `Client`."""

    _inner: AsyncCatalog

    def list_tools(
        self, servers: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> ToolList:
        """List the tools that the tenant sees; see `AsyncClient.list_tools`."""
        inner = self._inner
        return background().run(lambda: inner.list_tools(servers, timeout=timeout))

    def search_tools(
        self,
        query: str,
        limit: int = 5,
        *,
        servers: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> list[Tool]:
        """Find tools by what they are for; see `AsyncClient.search_tools`."""
        inner = self._inner
        return background().run(
            lambda: inner.search_tools(query, limit, servers=servers, timeout=timeout)
        )

    def describe_tool(self, name: str, *, timeout: float | None = None) -> dict[str, Any]:
        """Return a tool's definition; see `AsyncClient.describe_tool`."""
        inner = self._inner
        return background().run(lambda: inner.describe_tool(name, timeout=timeout))

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
