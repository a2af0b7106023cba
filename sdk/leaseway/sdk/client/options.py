"""The options of `call_tool` and `stream_tool`, and the callbacks and handlers among them.

A function that passes the options on can be declared with `**options: Unpack[CallOptions]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypedDict

from leaseway.sdk.operators.views import Approval
from leaseway.sdk.transport.events import BufferedEvents, CallEvents, LogMessage, Progress
from leaseway.sdk.transport.server_requests import (
    AnswerTasks,
    Handlers,
    OnElicitation,
    OnSampling,
    Roots,
)
from leaseway.sdk.validation import check_callback, check_level, checked_token
from leaseway.wire.names import nearest

OnProgress = Callable[[float, float | None, str | None], object]
"""Called with progress, total and message, like the MCP package's `ProgressFnT`; may be async."""

OnLog = Callable[[str, str | None, Any], object]
"""Called with the level, logger and data of a server's log message; may be async."""

OnApproval = Callable[[Approval], object]
"""Asks a person to approve a call: returns True to approve, False to deny, None to leave it."""


@dataclass(frozen=True)
class Callbacks:
    """The callbacks and handlers of one call.

    Attributes:
        log_level: The minimum level of messages for `on_log`.
        handlers: Answer the server's requests.
    """

    on_progress: OnProgress | None = None
    on_log: OnLog | None = None
    log_level: str = "info"
    handlers: Handlers = field(default_factory=Handlers)

    def __bool__(self) -> bool:
        return self.on_progress is not None or self.on_log is not None or bool(self.handlers)

    def check(self, *, may_be_async: bool) -> None:
        """Raise a TypeError or ValueError if a callback, handler or the level is unusable."""
        check_callback("on_progress", self.on_progress, may_be_async=may_be_async)
        check_callback("on_log", self.on_log, may_be_async=may_be_async)
        check_level(self.log_level)
        self.handlers.check(may_be_async=may_be_async)

    def notify(self, event: Progress | LogMessage) -> object:
        """Call the event's callback; return what it returned, which may be awaitable."""
        if isinstance(event, LogMessage):
            return self.on_log(event.level, event.logger, event.data) if self.on_log else None
        if self.on_progress is None:
            return None
        return self.on_progress(event.progress, event.total, event.message)


@dataclass(frozen=True)
class ParsedOptions:
    """The options of one call of `call_tool`, checked.

    Attributes:
        timeout: Seconds, or None for that of the server.
        inline_media: Whether images and sounds are returned in place.
        subject_token: The token of whoever the call is for, or empty.
        on_approval: The approval callback of the call, or None.
        callbacks: Its other callbacks and handlers; None if it has no options but those above.
    """

    timeout: float | None = None
    inline_media: bool = False
    subject_token: str = ""
    on_approval: OnApproval | None = None
    callbacks: Callbacks | None = None

    def plain(self) -> CallOptions:
        """Return the options of the same call without callbacks."""
        return {
            "timeout": self.timeout,
            "inline_media": self.inline_media,
            "subject_token": self.subject_token or None,
        }

    def events(self) -> CallEvents | None:
        """Return what the call without callbacks asks for, or None if that is what most do."""
        if not self.inline_media and not self.subject_token:
            return None
        events = CallEvents(inline_media=self.inline_media)
        events.subject_token = self.subject_token
        return events

    def buffer(self, name: str, callbacks: Callbacks, *, tasks: bool) -> BufferedEvents:
        """Return the buffer for the events that have callbacks; see `build_events`."""
        return build_events(
            name,
            callbacks.handlers,
            tasks=tasks,
            progress=callbacks.on_progress is not None,
            log_level=callbacks.log_level if callbacks.on_log is not None else "",
            inline_media=self.inline_media,
            subject_token=self.subject_token,
        )


NO_OPTIONS: Final = ParsedOptions()
"""Of most calls."""


def build_events(
    name: str,
    handlers: Handlers,
    *,
    tasks: bool,
    progress: bool = False,
    log_level: str = "",
    inline_media: bool = False,
    subject_token: str = "",
) -> BufferedEvents:
    """Return the buffer for the events of a call, which also says what the call requests.

    Args:
        name: The name of the tool, prompt or resource.
        handlers: Answer the server's requests.
        tasks: Whether tasks of the running loop answer them; if not, requests are events, too.
        progress: Whether the server is asked to report progress.
        log_level: The minimum level of log messages, or empty for none.
        inline_media: Whether images and sounds are returned in place.
        subject_token: The token of whoever the call is for, or empty.
    """
    events = BufferedEvents(
        wants_progress=progress,
        log_level=log_level,
        answers=handlers.methods,
        tasks=AnswerTasks(handlers, name) if tasks and handlers else None,
        inline_media=bool(inline_media),
    )
    events.subject_token = subject_token
    return events


class StreamOptions(TypedDict, total=False):
    """The options of `stream_tool`. All are optional, and None is the same as absent."""

    timeout: float | None
    """Seconds until the call fails with DeadlineExceeded, retries included. None means the
    server's `call_timeout`, which is 60 by default."""

    log_level: str | None
    """The minimum level of log messages. None means `info` for `on_log` of `call_tool`, and no log
    messages for `stream_tool`."""

    on_elicitation: OnElicitation | None
    """Asks a person for the server: called with the params of `elicitation/create`, it returns an
    MCP ElicitResult (`{"action": "accept", "content": {…}}`, `decline` or `cancel`) as a dict or a
    pydantic model. With `mode: url` it lets a person open the `url`; after such an `accept` the
    call waits for a login that it needs. None means the client's handler. In `AsyncClient` it may
    be async, and each request runs in its own task, at most 16 at a time; in `Client` it runs in
    the thread that waits for the call. If it raises, the error is logged, the server receives an
    error, and the call continues."""

    on_sampling: OnSampling | None
    """Asks a model for the server, in the same way: called with the params of
    `sampling/createMessage`, it returns a CreateMessageResult."""

    roots: Roots | None
    """Directories and files that the server may use, if it asks: `file://` URIs, or mappings with
    `uri` and `name`. None means the client's roots."""

    subject_token: str | None
    """The OAuth token of whoever the call is for, for servers that exchange it for one of their
    own. None means that of the session, or else of the client."""

    inline_media: bool
    """Whether images and sounds are returned in place instead of as references to artifacts."""


class CallOptions(StreamOptions, total=False):
    """The options of `call_tool`. All are optional, and None is the same as absent."""

    on_progress: OnProgress | None
    """Called with (progress, total or None, message or None) when the server reports progress. If
    reports arrive faster than it returns, the newest 64 are kept. May be async in `AsyncClient`."""

    on_log: OnLog | None
    """Called with (level, logger or None, data) for the server's log messages, of which the newest
    256 are kept. May be async in `AsyncClient`."""

    on_approval: OnApproval | None
    """Asks a person if the call needs an approval that the client's credential may give: called
    with the `Approval`, it returns True (the call is repeated), False (the call is denied) or None
    (the approval stays open, and the call fails with ConfirmationRequired). None means the
    client's callback. The timeout does not include the person's time. May be async in
    `AsyncClient`."""


_ELSEWHERE: Final = {
    "agent": "Name the agent when the client is made: AsyncClient(agent=...).",
    "key": "Give the key when the client is made: AsyncClient(key=...).",
    "server": "Name the server in front of its tool: {method}('server:tool').",
    "session": "Call in a session with client.session(key).{method}(tool).",
    "tenant": "Name the tenant when the client is made: AsyncClient(tenant=...).",
    "user": "Call for a user with client.session(key, user=...).{method}(tool).",
}
"""Where what callers look for in a call is given."""


def parse_call_options(
    options: CallOptions, handlers: Handlers | None, *, may_be_async: bool
) -> ParsedOptions:
    """Return the options of `call_tool`.

    Args:
        options: The options passed; they are changed.
        handlers: The client's handlers.
        may_be_async: Whether callbacks and handlers may be async.

    Raises:
        TypeError: There is no such option, or a callback is unusable.
        ValueError: The log level is not one of MCP's.
    """
    parsed = ParsedOptions(
        timeout=options.pop("timeout", None),
        inline_media=options.pop("inline_media", False),
        subject_token=checked_token(options.pop("subject_token", None)),
        on_approval=options.pop("on_approval", None),
    )
    check_callback("on_approval", parsed.on_approval, may_be_async=may_be_async)
    if not options and handlers is None:
        return parsed
    _reject_unknown("call_tool", options, CallOptions.__optional_keys__ | {"result_type"})
    callbacks = Callbacks(
        options.get("on_progress"),
        options.get("on_log"),
        options.get("log_level") or "info",
        _handlers(options, handlers),
    )
    callbacks.check(may_be_async=may_be_async)
    return replace(parsed, callbacks=callbacks)


def build_stream_events(
    name: str, options: StreamOptions, defaults: Handlers | None, *, may_be_async: bool
) -> tuple[BufferedEvents, Handlers]:
    """Return the buffer for the events of `stream_tool`, and the handlers of server requests.

    Args:
        name: The tool's name.
        options: The options passed, except `timeout`.
        defaults: The client's handlers.
        may_be_async: Whether the handlers may be async; they then run in tasks.

    Raises:
        TypeError: There is no such option, or a handler is unusable.
        ValueError: The level is not one of MCP's.
    """
    _reject_unknown("stream_tool", options, StreamOptions.__optional_keys__)
    level = options.get("log_level")
    if level is not None:
        check_level(level)
    handlers = _handlers(options, defaults)
    handlers.check(may_be_async=may_be_async)
    events = build_events(
        name,
        handlers,
        tasks=may_be_async,
        progress=True,
        log_level=level or "",
        inline_media=options.get("inline_media", False),
        subject_token=checked_token(options.get("subject_token")),
    )
    return events, handlers


def _handlers(options: StreamOptions, defaults: Handlers | None) -> Handlers:
    own = Handlers(options.get("on_elicitation"), options.get("on_sampling"), options.get("roots"))
    return own.with_defaults(defaults)


def _reject_unknown(method: str, options: Mapping[str, object], known: frozenset[str]) -> None:
    for name in options:
        if name not in known:
            # Only what is misspelt: other names are arguments of the tool, which belong elsewhere.
            near = nearest(name, sorted(known), limit=1, cutoff=0.75)
            if near:
                hint = f"Did you mean '{near[0]}'?"
            else:
                hint = _ELSEWHERE.get(name, "").format(method=method) or (
                    f"The arguments of a tool are one mapping: {method}(tool, {{'{name}': ...}})."
                )
            raise TypeError(
                f"{method} has no parameter '{name}'. {hint} Its options are "
                f"{', '.join(sorted(known))}."
            )
