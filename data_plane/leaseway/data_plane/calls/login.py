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
from leaseway.wire.advice import LOGIN_PAGE
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
    changed = logins.next_change()  # also one that comes while it is tried again
    try:
        await _find_with_present(active, logins, find)
        return
    except Fault as fault:
        url = fault.metadata.get(LOGIN_PAGE, "")
        is_asked = fault.reason is Reason.LOGIN_REQUIRED and url
        if not is_asked or ELICIT_URL not in active.call.answers:
            raise
        required = fault
    await _ask(active, required, url)
    while True:
        await _wait(active, required, changed)
        changed = logins.next_change()
        try:
            await find(active)
            return
        except Fault as fault:
            if fault.reason is not Reason.LOGIN_REQUIRED:
                raise
            required = fault  # somebody else has logged in


async def with_next_login(logins: LoginWatcher, required: Fault, active: ActiveCall) -> None:
    """Wait until a call may be sent again whose login has ended, or does not suffice.

    As `with_login`: a login that is there by now is used, and only who opens addresses is asked,
    once.

    Raises:
        Fault: LOGIN_REQUIRED, as given.
    """
    if active.login_changes is None:
        followed = logins.changes
        await logins.look()
    else:
        followed = active.login_changes
    active.login_changes = logins.changes
    if logins.changes != followed:  # it may be this one's login that has come
        return
    url = required.metadata.get(LOGIN_PAGE, "")
    if not url or ELICIT_URL not in active.call.answers:
        raise required
    changed = logins.next_change()
    if not active.was_asked_to_log_in:
        active.was_asked_to_log_in = True
        await _ask(active, required, url)
    await _wait(active, required, changed)
    active.login_changes = logins.changes


async def _ask(active: ActiveCall, required: Fault, url: str) -> None:
    """Ask a caller to open the address of a login.

    Raises:
        Fault: It does not.
    """
    try:
        async with asyncio.timeout_at(_until(active)):
            if not await _accepts(active, required, url):
                raise required
    except TimeoutError:
        raise required from None
    active.event("waiting for a login")


async def _wait(active: ActiveCall, required: Fault, changed: asyncio.Future[None]) -> None:
    """Wait for a change of logins.

    Raises:
        Fault: There was none in time.
    """
    left = _until(active) - asyncio.get_running_loop().time()
    _, pending = await asyncio.wait([changed], timeout=max(0.0, left))
    if pending:
        raise required


def _until(active: ActiveCall) -> float:
    assert active.deadline is not None  # set at the admission
    return active.deadline - _RESERVE


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
