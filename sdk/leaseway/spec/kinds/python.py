"""Servers that are a Python class (`transport: python`). Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from leaseway.spec.keys import Key, OwnReader, setting
from leaseway.spec.kinds.shared import ChildPart
from leaseway.spec.references import Value


@dataclass(frozen=True)
class PythonPart(ChildPart):
    """A server that a process of Leaseway's own makes of a class.

    Attributes:
        module: The module of the class, as in an import statement.
        class_name: The name of the class.
        config: What the class receives, as JSON in which references stay references; may be empty.
    """

    transports: ClassVar[tuple[str, ...]] = ("python",)
    has_code: ClassVar[bool] = True

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
            OwnReader(),
            "A mapping that the class receives; may contain references.",
            replaces="names",
            domain="set",
            by_name=True,
        ),
    )

    @property
    def values(self) -> Mapping[str, Value]:
        config = {f"config{path}": value for path, value in config_values(self.config).items()}
        return {**super().values, **config}


def config_values(config: str) -> dict[str, Value]:
    """Return the texts and references of a `PythonPart.config`, by path such as `.db.hosts[0]`."""
    found: dict[str, Value] = {}
    walk_config(json.loads(config) if config else {}, found.__setitem__)
    return found


def walk_config(node: Any, convert: Callable[[str, Value], Any], path: str = "") -> Any:
    """Return a parsed config with each text and reference converted by a function.

    A mapping of exactly one key `env`, `secret` or `file` with a text is a reference.
    """
    match node:
        case str():
            return convert(path, Value("literal", node))
        case {"env": str(name)} | {"secret": str(name)} | {"file": str(name)} if len(node) == 1:
            return convert(path, Value(next(iter(node)), name))
        case dict():
            return {
                key: walk_config(value, convert, f"{path}.{key}") for key, value in node.items()
            }
        case list():
            return [walk_config(item, convert, f"{path}[{i}]") for i, item in enumerate(node)]
        case _:
            return node
