"""An instance of a server whose tools are HTTP requests.

It has no connection: it is ready once its references are resolved and its templates are compiled,
and a failed request affects no other.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from yarl import URL

from leaseway.data_plane.core.artifacts.media import may_hold_media
from leaseway.data_plane.core.calls.call import (
    OnUpdate,
    Outcome,
    PendingCall,
    ReadArtifact,
    ToolRequest,
    too_large,
)
from leaseway.data_plane.core.definitions.sharing import shared
from leaseway.data_plane.core.ports import (
    NO_PROMPTS_RESOURCES,
    ClientState,
    ListedPromptsResources,
    NoStderr,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.http_api.client import NOTHING, HttpToolClient, SendState
from leaseway.data_plane.kinds.http_api.definitions import definitions
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.http_api.requests import MAX_HEADER_VALUE, build_request
from leaseway.data_plane.kinds.http_api.results import (
    HttpResponse,
    conditions,
    failed_rendering,
    rendered_result,
    result,
)
from leaseway.data_plane.kinds.http_api.serialization import number_of
from leaseway.data_plane.kinds.opening import Opening
from leaseway.data_plane.mcp.host import Host
from leaseway.data_plane.oauth.tokens import InstanceProblems
from leaseway.data_plane.outgoing import Outgoing
from leaseway.spec.kinds.http_api import HttpApiPart
from leaseway.spec.kinds.http_tools import IDEMPOTENT, HttpTool
from leaseway.spec.model import ServerSpec
from leaseway.templates.engine import Template, compiled
from leaseway.templates.go_nodes import TemplateSyntaxError
from leaseway.templates.limits import TemplateFailure
from leaseway.wire.bounds import KIB, MAX_RESULT, MIB
from leaseway.wire.errors import Fault, Reason, Started
from leaseway.wire.messages.artifact_refs import is_reference
from leaseway.wire.messages.mcp import BAGGAGE, NO_INTRODUCTION, TRACEPARENT, TRACESTATE

_logger = logging.getLogger(__name__)

MAX_ARTIFACT_BYTES: Final = 32 * MIB
"""Maximum bytes of all artifacts in one request."""

_INLINE: Final = 64 * KIB
"""Bytes of a response that is converted on the loop; larger ones in a thread."""

_decode_arguments: Final = msgspec.json.Decoder(dict[str, Any], float_hook=number_of).decode

_NOT_IN_URLS: Final = re.compile(r'[^!-~]|["<>\\^`{|}]')

_TRACE: Final = (TRACEPARENT, TRACESTATE, BAGGAGE)


@dataclass(frozen=True)
class _Tool:
    """A tool, prepared for its calls."""

    tool: HttpTool
    template: Template | None
    bytes_in: tuple[str, ...]
    """The names of its parameters with bytes."""
    base: str
    """The address that its endpoint is below."""
    is_foreign: bool
    """Whether that is another origin, which gets neither headers nor credentials."""


class HttpInstance:
    """An instance of a server with HTTP tools; implements `InstancePort`.

    Args:
        spec: The server.
        host: The worker's resources.
        opening: What it is opened with.
        renderers: Renders the templates of all APIs.
    """

    def __init__(
        self, spec: ServerSpec, host: Host, opening: Opening, renderers: Renderers
    ) -> None:
        self.id = opening.instance_id
        self.spec = spec
        self._part = spec.part_as(HttpApiPart)
        self.state: ClientState = "starting"
        self.starts_process = False
        self.pid: int | None = None
        self.protocol_version = ""
        self.introduction = NO_INTRODUCTION
        self.mcp_session = ""
        self.resolved_values = opening.resolved_values
        self.tools: Mapping[str, bytes] = {}
        self.prompts_resources: ListedPromptsResources | None = None
        self.stderr = NoStderr()
        self.warnings: tuple[tuple[str, str], ...] = ()
        self.late_replies = 0
        self._server = spec.key.server_id
        self._host = host
        self._read_values = opening.read_values
        self._listener = opening.listener
        self._listed = opening.listed or {}
        self._tools: dict[str, _Tool] = {}
        self._told = conditions(self._part.http_tools)
        self._renderers = renderers
        self._without_token: Callable[[str], str] = str
        self._client: HttpToolClient | None = None
        self._calls: set[_HttpCall] = set()

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    async def start(self) -> None:
        """Resolve the references and compile the templates; send no request.

        Raises:
            Fault: SERVER_NOT_READY with `problem` MISSING_REFERENCE or START_FAILED.
        """
        try:
            resolved_values = self.resolved_values or await self._read_values(
                self.spec, self._host.environment, self._host.vault, self.spec.startup_timeout
            )
            self._check(resolved_values)
            # In a thread: compiling takes milliseconds per template, and there may be 2,000 tools.
            self._tools, listed = await self._renderers.run(
                self._server, self._prepare_all, resolved_values.url
            )
        except BaseException:
            self.state = "failed"
            raise
        if self.state != "starting":
            raise self._closed_fault()
        self.resolved_values = resolved_values
        authorization = self._host.tokens.authorization(
            self.spec,
            resolved_values,
            InstanceProblems(self._listener, self),
        )
        if authorization is not None:
            self._without_token = authorization.without_token
        self._client = HttpToolClient(
            self._server,
            self._host.http,
            resolved_values.headers,
            resolved_values.credentials,
            follow_redirects=self._part.follow_redirects,
            # All callers share a shared instance, and a cookie may be one caller's login.
            outgoing=Outgoing(
                resolved_values.proxies,
                keeps_cookies=not self.spec.truely_stateless,
                authorization=authorization,
            ),
        )
        self.tools = listed
        self.state = "ready"

    def prepare(self, tool_name: str) -> bytes:
        """Return b"": requests are built from the tool's definition."""
        return b""

    def call(self, request: ToolRequest, done: Callable[[Outcome], None]) -> PendingCall:
        """Send a tool's request; never blocks."""
        call = _HttpCall(self, request, done)
        self._calls.add(call)
        return call

    def follow(self, uri: str, on_update: OnUpdate, done: Callable[[Outcome], None]) -> PendingCall:
        request = ToolRequest(uri, b"", b"", method="subscriptions/listen")
        return self.call(request, done)

    async def list_prompts_resources(
        self, timeout: float, recorded: ListedPromptsResources = NO_PROMPTS_RESOURCES
    ) -> ListedPromptsResources:
        """Return no prompts and resources: there are only tools.

        Raises:
            Fault: SERVER_LOST: the instance is not ready.
        """
        if self.state != "ready":
            raise self._closed_fault()
        self.prompts_resources = NO_PROMPTS_RESOURCES
        return NO_PROMPTS_RESOURCES

    async def relist(self) -> Mapping[str, bytes]:
        """Return the tools, which only change with the configuration."""
        if self.state != "ready":
            raise self._closed_fault()
        return self.tools

    async def close(self) -> None:
        """Close the instance; calls in flight fail."""
        for call in tuple(self._calls):
            call.end(Outcome(b"", fault=self._closed_fault()))
        if self.state != "closed" and self.state != "failed":
            was_ready, self.state = self._client is not None, "closed"
            if was_ready:
                self._listener.on_closed(self, None)

    # For its calls.

    async def outcome(self, request: ToolRequest, sending: SendState) -> Outcome:
        """Send a call's request; return its outcome."""
        prepared = self._tools.get(request.name)
        if self.state != "ready" or self._client is None:
            return Outcome(b"", fault=self._closed_fault())
        if request.method or prepared is None:
            return Outcome(b"", fault=_not_found(self._server, request))
        try:
            arguments = _decode_arguments(request.arguments or b"{}")
            if prepared.bytes_in and request.read_artifact is not None:
                await read_artifacts(arguments, prepared.bytes_in, request.read_artifact)
            has_nulls = b"null" in request.arguments
            http_request = build_request(
                prepared.tool, prepared.base, arguments, has_nulls=has_nulls
            )
            trace = _trace_headers(request.meta or {})
            async with asyncio.timeout(prepared.tool.timeout):
                response = await self._client.send(
                    http_request,
                    trace,
                    prepared.tool.retries,
                    sending,
                    NOTHING
                    if prepared.is_foreign
                    else self._client.carried(prepared.tool.security),
                )
        except Fault as fault:
            return Outcome(b"", fault=fault)
        except TimeoutError:
            return Outcome(b"", fault=self._timed_out(prepared.tool, sending))
        payload, is_error = await self._result(response, prepared.template, self._hide)
        if len(payload) > MAX_RESULT and not may_hold_media(payload):
            return Outcome(b"", fault=too_large(self._server, len(payload)))
        return Outcome(payload, is_error)

    async def _result(
        self, response: HttpResponse, template: Template | None, hide: Callable[[str], str]
    ) -> tuple[bytes, bool]:
        if template is not None and response.is_success and response.body:
            try:
                text = await self._renderers.render(self._server, template, response.utf8)
            except TemplateFailure as failure:
                return failed_rendering(failure, response, hide)
            return rendered_result(text, response)
        if len(response.body) > _INLINE:
            return await self._renderers.run(self._server, result, response, hide, self._told)
        return result(response, hide, self._told)

    def _hide(self, text: str) -> str:
        if self.resolved_values is not None:
            text = self.resolved_values.without_secrets(text)
        return self._without_token(text)

    def remove(self, call: _HttpCall) -> None:
        self._calls.discard(call)

    def unexpected(self, error: Exception, sending: SendState) -> Outcome:
        """Return the outcome of a call after an unexpected exception."""
        _logger.error("A call of the server %s failed.", self._server, exc_info=error)
        text = f"A request to the server {self._server} failed inside the worker; see its log."
        started: Started = "unknown" if sending.written else "no"
        return Outcome(b"", fault=Fault(Reason.INTERNAL, text, started))

    def _prepare_all(self, url: str) -> tuple[dict[str, _Tool], dict[str, bytes]]:
        """Return the tools by name, and their definitions."""
        tools = self._part.http_tools
        prepared = {tool.name: self._prepare_tool(tool, url) for tool in tools}
        return prepared, shared(definitions(tools), self._listed)

    def _prepare_tool(self, tool: HttpTool, url: str) -> _Tool:
        if tool.method in IDEMPOTENT and not tool.retries and self._part.retries:
            tool = replace(tool, retries=self._part.retries)
        bytes_in = tuple(parameter.name for parameter in tool.parameters if parameter.is_binary)
        base, is_foreign = _base_of(tool, url)
        if not tool.response_template:
            return _Tool(
                tool=tool, template=None, bytes_in=bytes_in, base=base, is_foreign=is_foreign
            )
        try:
            template = compiled(tool.response_template)
            return _Tool(
                tool=tool, template=template, bytes_in=bytes_in, base=base, is_foreign=is_foreign
            )
        except TemplateSyntaxError as error:
            text = f"the response template of its tool {tool.name} does not compile ({error})"
            raise self._unusable(text) from None

    def _check(self, resolved_values: ResolvedValues) -> None:
        try:
            url = URL(resolved_values.url)
        except ValueError:
            url = URL()
        if url.scheme not in ("http", "https") or not url.host or url.query_string or url.fragment:
            raise self._unusable("its base_url is not an http or https URL without a query")
        in_headers = (
            (credential.name, credential.value)
            for credential in resolved_values.credentials.values()
            if credential.position != "query"
        )
        for name, value in (*resolved_values.headers.items(), *in_headers):
            if not value.isprintable():
                raise self._unusable(
                    f"its header {name} contains a character that no header may contain"
                )

    def _unusable(self, cause: str) -> Fault:
        return Fault(
            Reason.SERVER_NOT_READY,
            f"The server {self._server} cannot be used: {cause}.",
            metadata={"server": self._server, "problem": "START_FAILED"},
        )

    def _timed_out(self, tool: HttpTool, sending: SendState) -> Fault:
        return Fault(
            Reason.DEADLINE_EXCEEDED,
            f"The server {self._server} did not answer within {tool.timeout:g} s, the timeout of "
            f"its tool {tool.name}.",
            "unknown" if sending.written else "no",
            {"server": self._server},
        )

    def _closed_fault(self) -> Fault:
        text = f"The instance with the HTTP tools of the server {self._server} is closed."
        return Fault(Reason.SERVER_LOST, text, "no", {"server": self._server})


class _HttpCall:
    """A call in flight; `done` receives its outcome once."""

    __slots__ = ("_done", "_instance", "_sending", "_task")

    def __init__(
        self, instance: HttpInstance, request: ToolRequest, done: Callable[[Outcome], None]
    ) -> None:
        self._instance = instance
        self._done: Callable[[Outcome], None] | None = done
        self._sending = SendState()
        self._task = asyncio.get_running_loop().create_task(self._run(request))

    @property
    def written(self) -> bool:
        """Whether any of the request was handed to a socket."""
        return self._sending.written

    def cancel(self, reason: str) -> None:
        """Cancel the request and close its connection, which notifies the server."""
        self._done = None
        self._task.cancel()
        self._instance.remove(self)

    def end(self, outcome: Outcome) -> None:
        self._finish(outcome)
        self._task.cancel()

    async def _run(self, request: ToolRequest) -> None:
        try:
            outcome = await self._instance.outcome(request, self._sending)
        except Exception as error:  # noqa: BLE001 - must not affect other calls
            outcome = self._instance.unexpected(error, self._sending)
        self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        self._instance.remove(self)
        if done is None:
            return
        try:
            done(outcome)
        except Exception:  # a caller's bug must not affect the instance
            _logger.exception("The callback of a call failed.")


def _trace_headers(meta: Mapping[str, object]) -> dict[str, str]:
    """Return the headers of a call's trace, without what no header may be; callers choose it."""
    return {
        name: text
        for name in _TRACE
        if isinstance(text := meta.get(name), str)
        and 0 < len(text) <= MAX_HEADER_VALUE
        and text.isprintable()
    }


def _base_of(tool: HttpTool, url: str) -> tuple[str, bool]:
    """Return the address below which a tool's endpoint is, and whether it is another origin.

    Args:
        tool: The tool.
        url: The server's own address.
    """
    if not tool.base_url:
        return _sendable(url), False
    origin = URL(url).origin()
    if tool.base_url.startswith("/"):
        return _sendable(f"{origin}{tool.base_url}"), False
    is_foreign = URL(tool.base_url).origin() != origin and not tool.send_credentials
    return _sendable(tool.base_url), is_foreign


def _sendable(url: str) -> str:
    """Return an address whose characters a request may have: people write spaces and umlauts."""
    return str(URL(url)) if _NOT_IN_URLS.search(url) else url


def _not_found(server: str, request: ToolRequest) -> Fault:
    missing = f"{request.method} of {request.name}" if request.method else f"tool {request.name}"
    return Fault(
        Reason.TOOL_NOT_FOUND, f"The server {server} has only HTTP tools, and no {missing[:128]}."
    )


Place = tuple[dict[str, Any] | list[Any], Any]
"""A container with an artifact reference, and the reference's key or index in it."""


async def read_artifacts(
    arguments: dict[str, Any], names: Iterable[str], read: ReadArtifact
) -> None:
    """Replace artifact references in arguments by the artifacts' bytes.

    Args:
        arguments: The call's arguments; modified.
        names: The parameters with bytes: a value or a list of values each.
        read: Returns an artifact's bytes.

    Raises:
        Fault: ARTIFACT_LOST, OVERLOADED, or INVALID_ARGUMENTS if they are too large.
    """
    remaining = MAX_ARTIFACT_BYTES
    for container, key in list(_references(arguments, names)):
        try:
            container[key] = content = await read(container[key], remaining)
        except Fault as fault:
            if fault.reason is not Reason.ARTIFACT_LOST:
                raise
            text = (
                f"{fault.message.rstrip('.')}. Another worker may have it: pass its bytes as base64"
                " instead."
            )
            raise replace(fault, message=text, started="no") from None
        remaining -= len(content)


def _references(arguments: dict[str, Any], names: Iterable[str]) -> Iterator[Place]:
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str) and is_reference(value):
            yield arguments, name
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, str) and is_reference(item):
                    yield value, index
