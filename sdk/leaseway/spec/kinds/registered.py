"""Servers of a transport that another package registers (see `spec.kinds.transports`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from leaseway.spec.kinds.shared import McpPart, indexed, keyed, literals
from leaseway.spec.model import Value


@dataclass(frozen=True)
class RegisteredPart(McpPart):
    """What a registered transport is given; it uses of it what it needs."""

    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, Value] = field(default_factory=dict)
    headers: Mapping[str, Value] = field(default_factory=dict)
    session_id: str = ""

    @property
    def values(self) -> Mapping[str, Value]:
        return {**keyed("env", self.env), **keyed("headers", self.headers)}

    @property
    def texts(self) -> Iterable[tuple[str, str]]:
        address = (("url", self.url), ("sessionId", self.session_id))
        return (("command", self.command), *indexed("args", self.args), *address)

    @property
    def lease_texts(self) -> Iterable[str]:
        return (*self.args, *literals(self.env))
