"""Servers that are the kit, which Leaseway includes (`transport: builtin`). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from leaseway.spec.keys import Key, OwnReader, setting
from leaseway.spec.kinds.shared import ChildPart


@dataclass(frozen=True)
class Builtin:
    """The enabled features of the kit.

    Attributes:
        roots: The folders that its file tools may access.
        commands: The command lines that it may execute.
        hosts: The hosts that it may access; none means any public host.
    """

    tools: tuple[str, ...] = ()
    roots: tuple[str, ...] = setting(
        (),
        Key(
            OwnReader(),
            "The folders that file tools may reach: [the kit](kit.md).",
            replaces="names",
        ),
    )
    commands: tuple[str, ...] = setting(
        (), Key(OwnReader(), "The command lines that may be executed.", replaces="names")
    )
    hosts: tuple[str, ...] = setting(
        (),
        Key(
            OwnReader(),
            "The hosts that requests may be sent to.",
            default="public ones",
            replaces="names",
        ),
    )


NOTHING_BUILTIN: Final = Builtin()


@dataclass(frozen=True)
class BuiltinPart(ChildPart):
    """A server that is a process of the kit."""

    transports: ClassVar[tuple[str, ...]] = ("builtin",)
    readers: ClassVar[str] = "leaseway.control_plane.config.schema.kinds.builtin"
    enables_tools: ClassVar[bool] = True

    builtin: Builtin = NOTHING_BUILTIN

    @property
    def enabled_tools(self) -> tuple[str, ...]:
        return self.builtin.tools
