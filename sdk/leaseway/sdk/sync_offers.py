"""Prompts, resources and completions: what the synchronous client and its sessions share."""

from __future__ import annotations

from collections.abc import Mapping

from leaseway.sdk.background import background
from leaseway.sdk.offer_results import Completion, PromptResult, ResourceResult
from leaseway.sdk.offers import AsyncOffers
from leaseway.sdk.subscriptions import AsyncResourceUpdates, ResourceUpdates

__all__ = ["Offers"]


class Offers:
    """The part of `Client` and `Session` that uses prompts and resources."""

    _inner: AsyncOffers

    def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        server: str | None = None,
        timeout: float | None = None,
    ) -> PromptResult:
        """Get a prompt with its arguments filled in; see `AsyncClient.get_prompt`."""
        inner = self._inner
        return background().run(
            lambda: inner.get_prompt(name, arguments, server=server, timeout=timeout)
        )

    def read_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceResult:
        """Read a resource; see `AsyncClient.read_resource`."""
        inner = self._inner
        return background().run(lambda: inner.read_resource(uri, server=server, timeout=timeout))

    def complete(
        self,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        context: Mapping[str, str] | None = None,
        server: str | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Ask how an argument or a variable may go on; see `AsyncClient.complete`."""
        inner = self._inner
        return background().run(
            lambda: inner.complete(
                argument,
                value,
                prompt=prompt,
                template=template,
                context=context,
                server=server,
                timeout=timeout,
            )
        )

    def subscribe_resource(
        self, uri: str, *, server: str | None = None, timeout: float | None = None
    ) -> ResourceUpdates:
        """Follow a resource's changes; see `AsyncClient.subscribe_resource`.

        with client.subscribe_resource(uri) as updates:
            for changed in updates:
                content = client.read_resource(changed)
        """
        inner = self._inner

        async def make() -> AsyncResourceUpdates:  # in the loop, which the client belongs to
            return inner.subscribe_resource(uri, server=server, timeout=timeout)

        return ResourceUpdates(background().run(make))
