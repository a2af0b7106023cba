"""Servers that are a command of the worker (`transport: stdio`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from leaseway.spec.kinds.shared import CommandPart


@dataclass(frozen=True)
class ProcessPart(CommandPart):
    """A server that the worker starts as a process."""

    transports: ClassVar[tuple[str, ...]] = ("stdio",)
    readers: ClassVar[str] = "leaseway.control_plane.config.schema.kinds.process"
    synonyms: ClassVar[Mapping[str, str]] = {
        "process": "stdio",
        "command": "stdio",
        "local": "stdio",
    }
    implied_by: ClassVar[tuple[str, ...]] = ("command",)
