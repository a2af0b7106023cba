"""From the watched file to the coordinator: parse, say what is wrong, hand over (DESIGN §3.2)."""

from __future__ import annotations

import logging
from pathlib import Path

from opentelemetry.trace import Span

from leaseway.control_plane.config.issues import ConfigIssue, ParsedConfig
from leaseway.control_plane.config.native import parse_native
from leaseway.control_plane.config.watcher import (
    ConfigGone,
    ConfigText,
    ConfigUnreadable,
    watch_config,
)
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.edge.plane import Plane
from leaseway.wire.telemetry import Attr, traceparent_of, tracer

__all__ = ["follow_config", "take_config"]

ConfigEvent = ConfigText | ConfigGone | ConfigUnreadable

_logger = logging.getLogger(__name__)


async def follow_config(plane: Plane, path: Path) -> None:
    """Give a plane each new content of a configuration file, until cancelled."""
    async for event in watch_config(path):
        take_config(plane, path, event)


def take_config(
    plane: Plane, path: Path, event: ConfigText | ConfigGone | ConfigUnreadable
) -> None:
    """Give a plane one observation of its configuration, in a trace of its own."""
    attributes = {Attr.CONFIG_PATH: str(path)}
    with tracer(__name__).start_as_current_span("config reload", attributes=attributes) as span:
        match event:
            case ConfigText():
                _take_text(plane, path, event, span)
            case ConfigGone():
                _take_absence(plane, path, span)
            case ConfigUnreadable():
                message = f"The configuration {path} cannot be read: {event.reason}"
                _logger.error(message)
                problem = Problem("workspace", "CONFIG_UNREADABLE", message)
                plane.act(lambda state, now: state.config_failed([problem], now))


def _take_text(plane: Plane, path: Path, event: ConfigText, span: Span) -> None:
    with tracer(__name__).start_as_current_span("parse"):
        parsed = parse_native(event.text, str(path))
    for issue in parsed.issues:
        _log(issue)
    problems = [issue.problem for issue in parsed.issues]
    if parsed.broken:
        _logger.error("the configuration was refused; what was served goes on", extra=_where(path))
        plane.act(lambda state, now: state.config_failed(problems, now))
        return
    _logger.info("configuration loaded", extra={**_where(path), "servers": len(parsed.servers)})
    _hand_over(plane, parsed, problems, span)


def _take_absence(plane: Plane, path: Path, span: Span) -> None:
    _logger.warning("there is no configuration; no servers are served", extra=_where(path))
    message = f"There is no file {path}: no servers are configured. Write one, or pass --config."
    problem = Problem("workspace", "CONFIG_MISSING", message, severity="warning")
    _hand_over(plane, ParsedConfig({}, frozenset(), (), False), [problem], span)


def _hand_over(plane: Plane, parsed: ParsedConfig, problems: list[Problem], span: Span) -> None:
    trace = traceparent_of(span)
    with tracer(__name__).start_as_current_span("diff"):
        plane.act(
            lambda state, now: state.config_loaded(
                parsed.servers, parsed.rejected, problems, now, trace
            )
        )


def _log(issue: ConfigIssue) -> None:
    level = logging.ERROR if issue.severity == "error" else logging.WARNING
    _logger.log(level, "%s", issue)


def _where(path: Path) -> dict[str, str]:
    return {"config": str(path)}
