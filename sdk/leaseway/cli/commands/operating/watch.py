"""What `--watch` of a listing does: look again and again, and tell what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from leaseway.cli.options.common import Connection
from leaseway.cli.options.connection import ask
from leaseway.cli.output.tables import say

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient

T = TypeVar("T")

_EVERY: Final = 1.0
"""Seconds between two looks."""


def watch(
    connection: Connection,
    look: Callable[[AsyncClient], Awaitable[Sequence[T]]],
    tell: Callable[[Sequence[T], Sequence[T]], Iterable[str]],
    empty: str,
) -> None:
    """Print what there is, then every change, until the user interrupts.

    A control plane that goes away after the first answer is waited for.

    Args:
        connection: Whom to ask.
        look: Asks what there is now.
        tell: Returns a line for each difference between two looks, the first one to nothing.
        empty: A sentence for stderr where there is nothing yet.

    Raises:
        CliFailure: It could not be reached at first, or refused.
    """
    try:
        ask(connection, lambda client: _watch(client, look, tell, empty))
    except KeyboardInterrupt:
        return  # how a watch ends


async def _watch(
    client: AsyncClient,
    look: Callable[[AsyncClient], Awaitable[Sequence[T]]],
    tell: Callable[[Sequence[T], Sequence[T]], Iterable[str]],
    empty: str,
) -> None:
    known: Sequence[T] = ()
    found: Sequence[T] | None = await look(client)
    if not found:
        say(f"leaseway: {empty} Watching until Ctrl-C.", err=True)
    told = False
    while True:
        if found is not None:
            for line in tell(known, found):
                say(line)
            known, told = found, False
        elif not told:
            told = True
            say("leaseway: The control plane is unreachable; waiting for it.", err=True)
        await asyncio.sleep(_EVERY)
        found = await _look_again(client, look)


async def _look_again(
    client: AsyncClient, look: Callable[[AsyncClient], Awaitable[Sequence[T]]]
) -> Sequence[T] | None:
    from leaseway.sdk import ControlPlaneUnavailable

    try:
        return await look(client)
    except ControlPlaneUnavailable:
        return None
