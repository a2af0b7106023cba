"""Servers of a transport that another package registers (see `spec.kinds.transports`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leaseway.spec.keys import Need, setting
from leaseway.spec.kinds.shared import (
    ARGS,
    COMMAND,
    ENV,
    HEADERS,
    SESSION_ID,
    URL,
    McpPart,
    command_needs,
)
from leaseway.spec.references import Value


@dataclass(frozen=True)
class RegisteredPart(McpPart):
    """What a registered transport is given; it uses of it what it needs."""

    command: str = setting("", COMMAND)
    args: tuple[str, ...] = setting((), ARGS)
    url: str = setting("", URL)
    env: Mapping[str, Value] = setting({}, ENV)
    headers: Mapping[str, Value] = setting({}, HEADERS)
    session_id: str = setting("", SESSION_ID)

    @property
    def needs(self) -> Iterable[Need]:
        return command_needs(self.command)
