"""Requests of a fake worker that are no tool calls: prompts, resources, completions."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from leaseway.sdk.testing.context import CallContext
from leaseway.sdk.testing.offers import FakePrompt, FakeTemplate
from leaseway.sdk.testing.registry import Registry
from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Fault, Reason

_MOST_VALUES = 100


class Requests:
    """Answers requests other than tool calls; lives in one event loop.

    Args:
        registry: What is offered.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._followers: defaultdict[tuple[str, str], set[Callable[[str], None]]] = defaultdict(set)

    async def answer(
        self, call: execution_pb2.Call, params: bytes, context: CallContext
    ) -> dict[str, Any]:
        """Return the MCP result of a request.

        Args:
            call: The request.
            params: Its MCP params as JSON.
            context: What it runs in; takes the URIs that a subscription is told of, first an
                empty one.

        Raises:
            Fault: TOOL_NOT_FOUND, SERVER_ERROR, or INVALID_REQUEST: no such method.

        """
        parsed: dict[str, Any] = json.loads(params or b"{}")
        match call.method:
            case "prompts/get":
                prompt = self._registry.find_prompt(call.server_id, parsed["name"])
                return await prompt.get(parsed.get("arguments") or {}, context)
            case "resources/read":
                return self._registry.find_resource(call.server_id, parsed["uri"]).read()
            case "resources/subscribe":
                return await self._follow(call.server_id, parsed["uri"], context._line.update)
            case "completion/complete":
                return self._complete(call.server_id, parsed)
        raise Fault(Reason.INVALID_REQUEST, f"There is no method {call.method[:64]} to call.")

    def changed(self, server_id: str, uri: str) -> None:
        """Tell all who follow a resource that it has changed."""
        for tell in list(self._followers.get((server_id, uri), ())):
            tell(uri)

    async def _follow(
        self, server_id: str, uri: str, tell: Callable[[str], None]
    ) -> dict[str, Any]:
        self._registry.find_resource(server_id, uri)
        followers = self._followers[server_id, uri]
        followers.add(tell)
        try:
            tell("")
            await asyncio.Event().wait()
        finally:
            followers.discard(tell)
        raise AssertionError("nobody sets that event")

    def _complete(self, server_id: str, params: dict[str, Any]) -> dict[str, Any]:
        ref, argument = params["ref"], params["argument"]
        offer: FakePrompt | FakeTemplate
        if ref.get("type") == "ref/prompt":
            offer = self._registry.find_prompt(server_id, ref["name"])
        else:
            offer = self._registry.find_template(server_id, ref["uri"])
        known = offer.completions.get(argument["name"], ())
        fit = [value for value in known if value.startswith(argument["value"])]
        some = fit[:_MOST_VALUES]
        more = len(fit) > len(some)
        return {"completion": {"values": some, "total": len(fit), "hasMore": more}}
