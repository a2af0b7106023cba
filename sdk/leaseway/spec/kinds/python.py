"""Servers that are a Python class (`transport: python`). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leaseway.spec.keys import Key, OwnReader, setting
from leaseway.spec.kinds.shared import ChildPart


@dataclass(frozen=True)
class PythonPart(ChildPart):
    """A server that a process of Leaseway's own makes of a class.

    Attributes:
        module: The module of the class, as in an import statement.
        config: What the class receives, as JSON in which references stay references; may be empty.
    """

    transports: ClassVar[tuple[str, ...]] = ("python",)
    readers: ClassVar[str] = "leaseway.control_plane.config.schema.kinds.python"
    has_code: ClassVar[bool] = True
    implied_by: ClassVar[tuple[str, ...]] = ("module", "class")

    module: str = setting(
        "",
        Key(
            OwnReader(),
            "The module of the class: [Python classes](python-servers.md).",
            required=True,
        ),
    )
    class_name: str = setting(
        "", Key(OwnReader(), "The name of the class.", name="class", required=True)
    )
    config: str = setting(
        "",
        Key(
            OwnReader("json"),
            "A mapping that the class receives; may contain references.",
            replaces="names",
            domain="set",
            by_name=True,
        ),
    )
