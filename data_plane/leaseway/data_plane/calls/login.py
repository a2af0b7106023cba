"""Asks a caller to log in when its call needs that, and waits for the login."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.calls.call import Ask
from leaseway.data_plane.instances.login_watcher import LoginWatcher
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, ELICIT_URL

Find = Callable[[ActiveCall], Awaitable[None]]

_RESERVE: Final = 0.5
"""Seconds before the call's deadline at which it fails with LOGIN_REQUIRED instead."""


class _Answer(msgspec.Struct):
    action: str = ""


async def with_login(active: ActiveCall, logins: LoginWatcher, find: Find) -> None:
    """Find the instance of a call; if it needs a login, ask for one and try again after it.

    A login that another process has finished before the call is found. Only a caller that opens
    addresses is asked, by an elicitation of the mode `url`, and once. The call waits as long as its
    deadline lets it.

    Raises:
        Fault: There is none; LOGIN_REQUIRED if nobody has logged in.
    """
    try:
        await _find_with_present(active, logins, find)
        return
    except Fault as fault:
        url = fault.metadata.get("url", "")
        is_asked = fault.reason is Reason.LOGIN_REQUIRED and url
        if not is_asked or ELICIT_URL not in active.call.answers:
            raise
        required = fault
    loop = asyncio.get_running_loop()
    assert active.deadline is not None  # set at the admission
    until = active.deadline - _RESERVE
    changed = logins.next_change()
    try:
        async with asyncio.timeout_at(until):
            if not await _accepts(active, required, url):
                raise required
    except TimeoutError:
        raise required from None
    active.event("waiting for a login")
    while loop.time() < until:
        _, pending = await asyncio.wait([changed], timeout=until - loop.time())
        if pending:
            break
        changed = logins.next_change()
        try:
            await find(active)
            return
        except Fault as fault:
            if fault.reason is not Reason.LOGIN_REQUIRED:
                raise
            required = fault  # somebody else has logged in
    raise required


async def _find_with_present(active: ActiveCall, logins: LoginWatcher, find: Find) -> None:
    """Find the instance of a call with the logins that are there when it comes."""
    followed = logins.changes
    try:
        await find(active)
        return
    except Fault as fault:
        if fault.reason is not Reason.LOGIN_REQUIRED:
            raise
        required = fault
    await logins.look()
    if logins.changes == followed:
        raise required
    await find(active)


async def _accepts(active: ActiveCall, required: Fault, url: str) -> bool:
    """Return whether the caller opens the address; it may be open before it answers."""
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def take(result: bytes) -> None:
        if not answer.done():
            try:
                action = msgspec.json.decode(result, type=_Answer).action
            except ValueError:
                action = ""
            answer.set_result(action == "accept")

    def refuse(_code: int, _message: str, _data: bytes) -> None:
        if not answer.done():
            answer.set_result(False)

    params = {
        "mode": "url",
        "elicitationId": secrets.token_hex(8),
        "url": url,
        "message": f"Log in to {required.metadata.get('server', 'the server')} to go on.",
    }
    active.ask(Ask(ELICIT, msgspec.json.encode(params), take, refuse))
    return await answer
