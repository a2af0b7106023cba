"""Keys of a server's entry, each declared once: at the field of the spec that has its value.

So are the keys inside the mappings that some of them have, such as `level` in `sandbox`.

A field made by `setting` has a key: its spelling, the values that it accepts, a sentence for
people. The class with the field says what a change of it does (see `model.ServerSpec`). A key's
reader, its JSON Schema, its part of custom resources, its place in a spec's bytes and hashes, and
its row in docs/configuration.md are loops over these declarations. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from dataclasses import replace as replaced
from typing import Any, Final, Literal, TypeVar

INSTANT: Final = 0.001
DAY: Final = 86_400.0
YEAR: Final = 365 * DAY
"""Bounds of durations, in seconds."""

_KEYS: Final = "keys"
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Flag:
    """True or false."""


@dataclass(frozen=True)
class Whole:
    """A whole number within bounds, both included."""

    smallest: int
    largest: int


@dataclass(frozen=True)
class Number:
    """A number within bounds, both included."""

    smallest: float
    largest: float


@dataclass(frozen=True)
class Duration:
    """Seconds, or a text such as `1h30m`; the bounds are in seconds, both included."""

    smallest: float
    largest: float


@dataclass(frozen=True)
class Size:
    """Bytes, or a text such as `512MiB`; the bounds are in bytes, both included."""

    smallest: int
    largest: int


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Text:
    """A text without references, of at most so many characters, perhaps of at least one."""

    longest: int
    empty: bool = True


@dataclass(frozen=True)
class ListOf:
    """A list of at most so many values of one shape."""

    item: Shape
    limit: int


@dataclass(frozen=True)
class OwnReader:
    """What a reader that is written for this key accepts (`READERS` in `config/schema/keys.py`).

    Attributes:
        kept: What the spec keeps of it, if that is a text: the text, JSON in which references stay
            references, or the path of a file on the worker.
    """

    kept: Literal["value", "json", "file"] = "value"


Shape = Flag | Whole | Number | Duration | Size | Choice | Text | ListOf | OwnReader
"""The values that a key accepts."""

Replaces = Literal["nothing", "names", "lease_names"]
"""What a worker replaces in a key's texts: nothing, `${NAME}`, or also the names of a lease."""

DomainMay = Literal["if_opened", "set", "set_known_names", "never_set"]
"""Whether domain layers may set a key: if `domain_may` opens it, always, always for the names that
the layer below has, or never."""


@dataclass(frozen=True)
class Key:
    """One key of an entry.

    Attributes:
        shape: The values that it accepts.
        about: One sentence for people, in Markdown; links start from docs/configuration.md.
        name: Its spelling in files, if it is not the field's name.
        path: The field of the spec that has its value, such as `instances.warm`; where it is
            declared, only what follows the field that declares it, such as a name in a mapping.
        value: The field's default.
        default: The default in words; empty means `value`.
        required: Whether each server that accepts the key needs it; of a key inside another,
            whether each mapping does.
        required_by: Of a key inside another, the forms of its mapping that need it, such as the
            grants of `auth`.
        only: The built-in transports of its kind that accept it, inside `auth` the grants; empty
            means all.
        instead: A key that makes this one optional, or empty.
        replaces: What a worker replaces in its texts.
        domain: Whether domain layers may set it.
        by_name: Whether layers merge its mapping name by name.
        inside: The keys of the mapping that is its value, or one of its items.
        secret: Whether every literal in it is a credential, however short.
        listed: Whether lists of configured values show one line for each item.
        becomes: The field of the spec that the control plane fills from it, if it is no setting
            itself.
    """

    shape: Shape
    about: str
    name: str = ""
    path: str = ""
    value: Any = None
    default: str = ""
    required: bool = False
    required_by: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    instead: str = ""
    replaces: Replaces = "nothing"
    domain: DomainMay = "if_opened"
    by_name: bool = False
    inside: tuple[Key, ...] = ()
    secret: bool = False
    listed: bool = False
    becomes: str = ""

    @property
    def description(self) -> str:
        """Its sentence without links, for editors and custom resources."""
        return _LINK.sub(r"\1", self.about)


@dataclass(frozen=True)
class Need:
    """Something that a machine needs to start a server.

    Attributes:
        key: The path of the key that needs it.
        kind: Whether it is a program or a path.
        text: The program, in which `${NAME}` is replaced, or the path.
        without: The warning about a machine that lacks it; `{}` stands for the text.
    """

    key: str
    kind: Literal["program", "path"]
    text: str
    without: str


def setting(default: _T, *keys: Key) -> _T:
    """Return a dataclass field with the value of a key, or of one of some for different servers."""
    metadata = {_KEYS: keys}
    if isinstance(default, dict):  # a dataclass refuses a default that can be changed
        assert not default, "A mapping's default is empty."
        empty: _T = field(default_factory=dict, metadata=metadata)  # type: ignore[assignment]
        return empty
    return field(default=default, metadata=metadata)


def declared(*keys: Key) -> Mapping[str, tuple[Key, ...]]:
    """Return the metadata of a field that has no default."""
    return {_KEYS: keys}


def keys_at(setting: Field[Any]) -> tuple[Key, ...]:
    """Return the keys that a field of a dataclass declares, without names and paths of its own."""
    keys: tuple[Key, ...] = setting.metadata.get(_KEYS, ())
    return keys


def keys_of(settings: type, prefix: str = "") -> Iterator[Key]:
    """Yield the keys that a class of settings declares, in order, each with its path.

    A field that is a group of settings itself, such as `instances`, has the keys of its class.
    """
    for setting in fields(settings):
        default = setting.default
        if default is MISSING and setting.default_factory is not MISSING:
            default = setting.default_factory()
        path = f"{prefix}{setting.name}"
        declares = keys_at(setting)
        if declares:
            value = None if default is MISSING else default
            for found in declares:
                name = found.name or setting.name
                within = f"{path}.{found.path}" if found.path else path
                yield replaced(found, name=name, path=within, value=value)
        elif is_dataclass(default):
            yield from keys_of(type(default), f"{path}.")
