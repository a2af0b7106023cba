"""What users can do with a client, used and taken note of: methods, parameters, members."""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Self, get_args, get_type_hints

import leaseway.sdk as sdk

Names = Mapping[str, set[str]]
Used = defaultdict[str, set[str]]


def parameters(method: Callable[..., Any]) -> set[str]:
    """Return the names of what a method takes; of `**options`, of what those are."""
    names: set[str] = set()
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (options,) = get_args(get_type_hints(method)[name])
            names |= options.__optional_keys__
        elif name != "self":
            names.add(name)
    return names


def methods(kind: type) -> Names:
    """Return what the public methods of a class take."""
    return {
        name: parameters(method)
        for name, method in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


class Recorded:
    """A client or a session that takes note of what it is asked for."""

    def __init__(self, inner: Any, used: Used) -> None:
        self._inner = inner
        self._used = used

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        def use(*args: Any, **named: Any) -> Any:
            bound = inspect.signature(method).bind(*args, **named).arguments
            options = bound.pop("options", {})
            self._used[name] |= {*bound, *options}
            return method(*args, **named)

        return use


class Threads:
    """Something of the synchronous client with the face of its asynchronous twin.

    What would block runs in a thread: it is awaited here, where it blocks there.
    """

    def __init__(self, inner: Any, twin: type) -> None:
        self.inner = inner
        self._twin = twin

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(inspect.getattr_static(self._twin, name, None)):
            return member

        async def use(*args: Any, **named: Any) -> Any:
            return await asyncio.to_thread(member, *args, **named)

        use.__signature__ = inspect.signature(member)  # type: ignore[attr-defined]
        return use

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.inner.__enter__)
        return self

    async def __aexit__(self, *how: object) -> None:
        await asyncio.to_thread(self.inner.__exit__, *how)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        made = await asyncio.to_thread(next, self.inner, self)
        if made is self:
            raise StopAsyncIteration
        return made

    def __await__(self) -> Any:
        return self.read().__await__()


def data_members(kind: type) -> set[str]:
    """Return the public members of a class that are no methods."""
    names = {name for name in dir(kind) if not name.startswith("_")}
    if is_dataclass(kind):
        names |= {field.name for field in fields(kind)}
    return {name for name in names if not callable(inspect.getattr_static(kind, name, None))}


class Seen:
    """Which members of results have held something."""

    def __init__(self) -> None:
        self.filled: defaultdict[type, set[str]] = defaultdict(set)

    def look(self, value: Any) -> Any:
        """Take note of a result, and of those in it; return it."""
        kind = type(value)
        if kind.__name__ in sdk.__all__:
            filled = self.filled[kind]
            for name in data_members(kind):
                member = getattr(value, name)
                if member:
                    filled.add(name)
                self.look(member)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            for each in value:
                self.look(each)
        return value

    def never_filled(self) -> dict[str, set[str]]:
        """Return the members that have held nothing, by class."""
        missing = {
            kind.__name__: data_members(kind) - filled for kind, filled in self.filled.items()
        }
        return {name: members for name, members in missing.items() if members}
