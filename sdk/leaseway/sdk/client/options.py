"""What a call takes beside its tool, its arguments and the type of its result: said once.

Both clients and their sessions take these as keyword arguments. A function that passes them on
can be declared in the same way: `**options: Unpack[CallOptions]`.

Whom a caller wants told or asked during a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypedDict

from leaseway.sdk.client.approvals import OnApproval
from leaseway.sdk.transport.events import BufferedEvents, LogMessage, Progress
from leaseway.sdk.transport.server_requests import (
    AnswerTasks,
    Handlers,
    OnElicitation,
    OnSampling,
    Roots,
)
from leaseway.sdk.validation import check_callback, check_level
from leaseway.wire.names import nearest

OnProgress = Callable[[float, float | None, str | None], object]
"""Told progress, total and message, like the official package's `ProgressFnT`; may be async."""

OnLog = Callable[[str, str | None, Any], object]
"""Told level, logger and data of a server's log message; may be async."""


@dataclass(frozen=True)
class Callbacks:
    """Whom to tell what a server says during a call, and who answers what it asks.

    Attributes:
        on_progress: Told of progress, or None.
        on_log: Told of log messages, or None.
        log_level: The least level for `on_log`.
        handlers: Answer what the server asks.
    """

    on_progress: OnProgress | None = None
    on_log: OnLog | None = None
    log_level: str = "info"
    handlers: Handlers = field(default_factory=Handlers)

    def __bool__(self) -> bool:
        return self.on_progress is not None or self.on_log is not None or bool(self.handlers)

    def check(self, *, may_be_async: bool) -> None:
        """Raise a TypeError or ValueError where they cannot be what was meant."""
        check_callback("on_progress", self.on_progress, may_be_async=may_be_async)
        check_callback("on_log", self.on_log, may_be_async=may_be_async)
        check_level(self.log_level)
        self.handlers.check(may_be_async=may_be_async)

    def notify(self, event: Progress | LogMessage) -> object:
        """Tell of one event; return what the callback returned, something to await perhaps."""
        if isinstance(event, LogMessage):
            return self.on_log(event.level, event.logger, event.data) if self.on_log else None
        if self.on_progress is None:
            return None
        return self.on_progress(event.progress, event.total, event.message)


@dataclass(frozen=True)
class CallOrder:
    """One call and what it asks for beside its result.

    Attributes:
        name: The tool's name.
        arguments: Its arguments.
        timeout: Seconds until the call is given up, or None for the server's own.
        progress: Whether progress is wanted.
        log_level: The least level of log messages wanted, or empty for none.
        handlers: Answer what the server asks.
        inline_media: Whether images and sounds are wanted in place.
    """

    name: str
    arguments: Mapping[str, Any] | None
    timeout: float | None
    progress: bool
    log_level: str
    handlers: Handlers
    inline_media: bool

    @classmethod
    def with_callbacks(
        cls,
        name: str,
        arguments: Mapping[str, Any] | None,
        timeout: float | None,
        callbacks: Callbacks,
        inline_media: bool,
    ) -> Self:
        """Return the order of a call that asks for what its callbacks want."""
        progress = callbacks.on_progress is not None
        log_level = callbacks.log_level if callbacks.on_log is not None else ""
        handlers = callbacks.handlers
        return cls(name, arguments, timeout, progress, log_level, handlers, inline_media)

    def events(self, *, tasks: bool) -> BufferedEvents:
        """Return room for what the server says; `tasks` answer what it asks, or the consumer."""
        answering = AnswerTasks(self.handlers, self.name) if tasks and self.handlers else None
        return BufferedEvents(
            wants_progress=self.progress,
            log_level=self.log_level,
            answers=self.handlers.methods,
            tasks=answering,
            inline_media=bool(self.inline_media),
        )


class StreamOptions(TypedDict, total=False):
    """The options of `stream_tool`; each may be left out, and None is the same."""

    timeout: float | None
    """Seconds until the call is given up, retries included; None means the server's
    `call_timeout`, 60 unless it is configured."""

    log_level: str | None
    """The least level of log messages wanted. None means `info` for `on_log` of `call_tool`, and
    that `stream_tool` gives none."""

    on_elicitation: OnElicitation | None
    """Answers what the server wants to know of a person: given the params of `elicitation/create`,
    it returns an MCP ElicitResult (`{"action": "accept", "content": {…}}`, `decline` or `cancel`)
    as a dict or a pydantic model. None means the client's own. In `AsyncClient` it may be async,
    and each question runs in a task of its own, at most 16 at a time; in `Client` it runs in the
    thread that waits for the call. Where it raises, that is logged, the server gets an error and
    the call goes on."""

    on_sampling: OnSampling | None
    """Answers what the server asks of a model, in the same way: given the params of
    `sampling/createMessage`, it returns a CreateMessageResult."""

    roots: Roots | None
    """What the server may work on, should it ask: `file://` URIs, or mappings with `uri` and
    `name`. None means the client's own."""

    inline_media: bool
    """Whether images and sounds come in place, not as references to artifacts."""


class CallOptions(StreamOptions, total=False):
    """The options of `call_tool`; each may be left out, and None is the same."""

    on_progress: OnProgress | None
    """Told (progress, total or None, message or None) as the server reports it; see `stream_tool`
    for what comes faster than it returns. Async in `AsyncClient` only, as `on_log`."""

    on_log: OnLog | None
    """Told (level, logger or None, data) of what the server logs meanwhile."""

    on_approval: OnApproval | None
    """Asks a person, where the call needs one and the client's credential may agree: given the
    `Approval`, it returns True (the call is made again), False (it is refused) or None (it waits
    for somebody else, and the call fails with ConfirmationRequired). None means the client's own.
    The time that a person takes is not part of the timeout. Async in `AsyncClient` only."""


def callbacks_of(options: CallOptions, defaults: Handlers | None) -> Callbacks:
    """Return whom the options of a call name to be told and asked.

    Args:
        options: What was passed, less `timeout` and `inline_media`.
        defaults: The client's own handlers.

    Raises:
        TypeError: There is no such option.
    """
    _refuse_unknown("call_tool", options, CallOptions.__optional_keys__)
    return Callbacks(
        options.get("on_progress"),
        options.get("on_log"),
        options.get("log_level") or "info",
        _handlers(options, defaults),
    )


def stream_order(
    name: str,
    arguments: Mapping[str, Any] | None,
    options: StreamOptions,
    defaults: Handlers | None,
) -> CallOrder:
    """Return the call that `stream_tool` makes.

    Args:
        name: The tool's name.
        arguments: Its arguments.
        options: What was passed beside them.
        defaults: The client's own handlers.

    Raises:
        TypeError: There is no such option.
        ValueError: The level is none of MCP's.
    """
    _refuse_unknown("stream_tool", options, StreamOptions.__optional_keys__)
    level = options.get("log_level")
    if level is not None:
        check_level(level)
    return CallOrder(
        name,
        arguments,
        options.get("timeout"),
        progress=True,
        log_level=level or "",
        handlers=_handlers(options, defaults),
        inline_media=options.get("inline_media", False),
    )


def _handlers(options: StreamOptions, defaults: Handlers | None) -> Handlers:
    own = Handlers(options.get("on_elicitation"), options.get("on_sampling"), options.get("roots"))
    return own.with_defaults(defaults)


def _refuse_unknown(method: str, options: Mapping[str, object], known: frozenset[str]) -> None:
    for name in options:
        if name not in known:
            near = nearest(name, sorted(known), limit=1)
            meant = f"; '{near[0]}' may be meant" if near else ""
            raise TypeError(
                f"{method} takes no parameter '{name}'{meant}. It takes {', '.join(sorted(known))}."
            )
