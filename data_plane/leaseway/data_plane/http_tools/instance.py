"""A server whose tools are HTTP requests, as an instance behind the worker's port.

There is no connection to keep: it is ready once its references are resolved and its templates are
compiled, and a request that fails fails alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import aiohttp
import msgspec
from yarl import URL

from leaseway.data_plane.core.artifacts.media import may_hold_media
from leaseway.data_plane.core.calls.call import (
    OnUpdate,
    Outcome,
    PendingCall,
    ToolRequest,
    too_large,
)
from leaseway.data_plane.core.ports import (
    NO_PROMPTS_RESOURCES,
    InstanceListener,
    ListedPromptsResources,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.http_tools.artifacts import read_artifacts
from leaseway.data_plane.http_tools.client import HttpToolClient, Sending
from leaseway.data_plane.http_tools.definitions import definitions
from leaseway.data_plane.http_tools.requests import build_request
from leaseway.data_plane.http_tools.results import result
from leaseway.data_plane.references.resolve import Vault, read_references
from leaseway.spec.http_tools import IDEMPOTENT, HttpTool
from leaseway.spec.model import ServerSpec
from leaseway.templates.engine import Template, compiled
from leaseway.templates.go_nodes import TemplateSyntaxError
from leaseway.wire.bounds import KIB, MAX_RESULT
from leaseway.wire.errors import Fault, Reason, Started

_logger = logging.getLogger(__name__)

State = Literal["starting", "ready", "closing", "closed", "failed"]

_INLINE: Final = 64 * KIB
"""Bytes of an answer that becomes a result on the loop; larger ones go to a thread."""
_TRACE: Final = ("traceparent", "tracestate", "baggage")


@dataclass(frozen=True)
class _Tool:
    """A tool, with what is made once for all its calls."""

    tool: HttpTool
    template: Template | None
    bytes_in: tuple[str, ...]
    """The names of its parameters that hold bytes."""


class _NoStderr:
    def lines(self) -> list[str]:
        return []

    def watch(self, on_line: Callable[[str], None]) -> None:
        """Tell nothing: there is no process."""


class HttpInstance:
    """One live use of a server's HTTP tools; see `InstancePort` for what its members mean.

    Args:
        spec: The server.
        http: The worker's pooled client.
        environment: The worker's environment, for references.
        vault: Where secrets are that the environment does not have.
        listener: Told what becomes of the instance.
        instance_id: Names it on its worker.
        resolved_values: What the references stand for, or None to read them at the start.
    """

    def __init__(
        self,
        spec: ServerSpec,
        http: aiohttp.ClientSession,
        environment: Mapping[str, str],
        vault: Vault,
        listener: InstanceListener,
        *,
        instance_id: str,
        resolved_values: ResolvedValues | None = None,
    ) -> None:
        self.id = instance_id
        self.spec = spec
        self.state: State = "starting"
        self.pid: int | None = None
        self.protocol_version = ""
        self.mcp_session = ""
        self.resolved_values = resolved_values
        self.tools: Mapping[str, bytes] = {}
        self.prompts_resources: ListedPromptsResources | None = None
        self.stderr = _NoStderr()
        self.warnings: tuple[tuple[str, str], ...] = ()
        self.late_replies = 0
        self._server = spec.key.server_id
        self._http = http
        self._environment = environment
        self._vault = vault
        self._listener = listener
        self._tools: dict[str, _Tool] = {}
        self._base = ""
        self._client: HttpToolClient | None = None
        self._calls: set[_HttpCall] = set()
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    async def start(self) -> None:
        """Resolve the references and compile the templates; nothing is sent.

        Raises:
            Fault: SERVER_NOT_READY with `problem` MISSING_REFERENCE or START_FAILED.
        """
        try:
            resolved_values = self.resolved_values or await read_references(
                self.spec, self._environment, self._vault, self.spec.startup_timeout
            )
            self._check(resolved_values)
            # Compiling takes milliseconds a template: calls of others go on meanwhile.
            self._tools = await asyncio.to_thread(self._prepare_all)
        except BaseException:
            self.state = "failed"
            raise
        if self.state != "starting":
            raise self._not_open()
        self.resolved_values = resolved_values
        self._base = resolved_values.url
        self._client = HttpToolClient(
            self._server,
            self._http,
            resolved_values.headers,
            resolved_values.query,
            credentials=resolved_values.credentials,
            follow_redirects=self.spec.follow_redirects,
        )
        self.tools = definitions(self.spec.http_tools)
        self.state = "ready"

    def prepare(self, tool_name: str) -> bytes:
        """Return nothing: a request is made from its tool's definition."""
        return b""

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> PendingCall:
        """Send a tool's request; never blocks."""
        call = _HttpCall(self, request, done)
        self._calls.add(call)
        self._drained.clear()
        return call

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        request = ToolRequest(uri, b"", b"", method="subscriptions/listen")
        return self.call(request, done)

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources = NO_PROMPTS_RESOURCES
    ) -> ListedPromptsResources:
        """Return that there is nothing but tools.

        Raises:
            Fault: SERVER_LOST: it has ended.
        """
        if self.state != "ready":
            raise self._not_open()
        self.prompts_resources = NO_PROMPTS_RESOURCES
        return NO_PROMPTS_RESOURCES

    async def relist(self) -> Mapping[str, bytes]:
        """Return the tools, which change with the configuration only."""
        if self.state != "ready":
            raise self._not_open()
        return self.tools

    async def close(self, grace: float = 0) -> None:
        """End it, after the calls under way have had `grace` seconds."""
        if self.state in ("starting", "ready"):
            self.state = "closing"
        try:
            if grace > 0:
                async with asyncio.timeout(grace):
                    await self._drained.wait()
        except TimeoutError:
            pass  # their callers learn that it was closed
        finally:
            for call in tuple(self._calls):
                call.end(Outcome(b"", fault=self._not_open()))
            if self.state != "closed" and self.state != "failed":
                was_ready, self.state = self._client is not None, "closed"
                if was_ready:
                    self._listener.on_closed(self, None)

    # For its calls.

    async def outcome(self, request: ToolRequest, sending: Sending) -> Outcome:
        """Return how a call ends."""
        known = self._tools.get(request.name)
        if self.state != "ready" or self._client is None:
            return Outcome(b"", fault=self._not_open())
        if request.method or known is None:
            return Outcome(b"", fault=_no_such(self._server, request))
        try:
            arguments = msgspec.json.decode(request.arguments or b"{}", type=dict)
            if known.bytes_in and request.read_artifact is not None:
                await read_artifacts(arguments, known.bytes_in, request.read_artifact)
            sent = build_request(known.tool, self._base, arguments)
            meta = request.meta or {}
            trace = {name: str(meta[name]) for name in _TRACE if meta.get(name)}
            async with asyncio.timeout(known.tool.timeout):
                response = await self._client.send(
                    sent, trace, known.tool.retries, sending, anonymous=known.tool.is_anonymous
                )
        except Fault as fault:
            return Outcome(b"", fault=fault)
        except TimeoutError:
            return Outcome(b"", fault=self._late(known.tool, sending))
        hide = self.resolved_values.without_secrets if self.resolved_values else str
        if len(response.body) > _INLINE:
            payload, is_error = await asyncio.to_thread(result, response, known.template, hide)
        else:
            payload, is_error = result(response, known.template, hide)
        if len(payload) > MAX_RESULT and not may_hold_media(payload):
            return Outcome(b"", fault=too_large(self._server, len(payload)))
        return Outcome(payload, is_error)

    def forget(self, call: _HttpCall) -> None:
        self._calls.discard(call)
        if not self._calls:
            self._drained.set()

    def failed_inside(self, error: Exception, sending: Sending) -> Outcome:
        """Return the outcome of a call that failed as nobody has foreseen."""
        _logger.error("A call of the server %s failed.", self._server, exc_info=error)
        text = (
            f"A request to the server {self._server} failed inside the worker; its log says more."
        )
        started: Started = "unknown" if sending.written else "no"
        return Outcome(b"", fault=Fault(Reason.INTERNAL, text, started))

    def _prepare_all(self) -> dict[str, _Tool]:
        return {tool.name: self._prepared(tool) for tool in self.spec.http_tools}

    def _prepared(self, tool: HttpTool) -> _Tool:
        if tool.method in IDEMPOTENT and not tool.retries and self.spec.retries:
            tool = replace(tool, retries=self.spec.retries)
        bytes_in = tuple(each.name for each in tool.parameters if each.is_binary)
        if not tool.response_template:
            return _Tool(tool, None, bytes_in)
        try:
            template = compiled(tool.response_template, tool.template_engine)
            return _Tool(tool, template, bytes_in)
        except TemplateSyntaxError as error:
            text = f"the response template of its tool {tool.name} does not compile ({error})"
            raise self._unusable(text) from None

    def _check(self, resolved_values: ResolvedValues) -> None:
        try:
            url = URL(resolved_values.url)
        except ValueError:
            url = URL()
        if url.scheme not in ("http", "https") or not url.host or url.query_string or url.fragment:
            raise self._unusable("its base_url is no http or https address without a query")
        for name, value in resolved_values.headers.items():
            if not value.isprintable():
                raise self._unusable(f"its header {name} holds a character that none may hold")

    def _unusable(self, why: str) -> Fault:
        return Fault(
            Reason.SERVER_NOT_READY,
            f"The server {self._server} cannot be used: {why}.",
            metadata={"server": self._server, "problem": "START_FAILED"},
        )

    def _late(self, tool: HttpTool, sending: Sending) -> Fault:
        return Fault(
            Reason.DEADLINE_EXCEEDED,
            f"The server {self._server} did not answer within the {tool.timeout:g} s that its "
            f"tool {tool.name} has.",
            "unknown" if sending.written else "no",
            {"server": self._server},
        )

    def _not_open(self) -> Fault:
        text = f"The HTTP tools of the server {self._server} are not open any more."
        return Fault(Reason.SERVER_LOST, text, "no", {"server": self._server})


class _HttpCall:
    """One call under way; `done` gets its outcome once."""

    __slots__ = ("_done", "_instance", "_sending", "_task")

    def __init__(
        self, instance: HttpInstance, request: ToolRequest, done: Callable[[Outcome], None]
    ) -> None:
        self._instance = instance
        self._done: Callable[[Outcome], None] | None = done
        self._sending = Sending()
        self._task = asyncio.get_running_loop().create_task(self._run(request))

    @property
    def written(self) -> bool:
        """Whether any of the request was handed to a socket."""
        return self._sending.written

    def cancel(self, reason: str) -> None:
        """Stop waiting; the connection of the request is closed, which tells the server."""
        self._done = None
        self._task.cancel()
        self._instance.forget(self)

    def end(self, outcome: Outcome) -> None:
        self._finish(outcome)
        self._task.cancel()

    async def _run(self, request: ToolRequest) -> None:
        try:
            outcome = await self._instance.outcome(request, self._sending)
        except Exception as error:  # one call's failure is no other's
            outcome = self._instance.failed_inside(error, self._sending)
        self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        self._instance.forget(self)
        if done is None:
            return
        try:
            done(outcome)
        except Exception:  # a caller's bug must not take the instance with it
            _logger.exception("The callback of a call failed.")


def _no_such(server: str, request: ToolRequest) -> Fault:
    what = f"{request.method} of {request.name}" if request.method else f"the tool {request.name}"
    return Fault(
        Reason.TOOL_NOT_FOUND, f"The server {server} has HTTP tools only, and not {what[:128]}."
    )
