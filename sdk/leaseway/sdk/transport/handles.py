"""Objects that stand for the connections and leases of this process: clients and what they open."""

from __future__ import annotations

from typing import NoReturn, Self, SupportsIndex


class ProcessHandle:
    """An object of which a process has only one: its copies are itself, and no pickle exists.

    Settings, agents and dataclasses that hold a client are copied deeply. A copy of its parts would
    be a second owner of the same connections, which closes them for the first one.
    """

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _copies: dict[int, object]) -> Self:
        return self

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled: its connections belong to this process. "
            "Make a client in each process, such as in the initializer of a pool, and pass names: "
            "client.session(key) is the same session in every process."
        )
