"""Takes the steps of people's logins that the console asks for."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from leaseway.data_plane.background import Background
from leaseway.data_plane.core.ports import LoginSubject
from leaseway.data_plane.oauth.logins.links import LoginLinks
from leaseway.data_plane.sync.outgoing import Outgoing
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault

_logger = logging.getLogger(__name__)


class LoginSteps:
    """Takes steps in the background: an authorization server may take its time.

    Args:
        links: The logins of this worker, or None if it has none.
        outgoing: Sends the results.
        background: Owns the tasks.
        follow: Lets calls use a login that has just been finished.
    """

    def __init__(
        self,
        links: LoginLinks | None,
        outgoing: Outgoing,
        background: Background,
        follow: Callable[[], Awaitable[None]],
    ) -> None:
        self._links = links
        self._outgoing = outgoing
        self._background = background
        self._follow = follow

    def use_console(self, url: str) -> None:
        """Make links to this console from now on; empty for none."""
        if self._links is not None:
            self._links.use_console(url)

    def start(self, step: sync_pb2.LoginStep) -> None:
        """Take a step; its result is sent when it ends."""
        self._background.spawn(self._run(step), "step of a login")

    async def _run(self, step: sync_pb2.LoginStep) -> None:
        result = sync_pb2.LoginResult(id=step.id)
        try:
            if self._links is None:
                result.message = "This worker has no vault for logins."
            else:
                await _take(step, self._links, result)
                if step.state:  # before its person hears of it, and calls
                    await self._follow()
        except Fault as fault:
            result.message = fault.message
        except Exception:  # the person who waits must learn of any failure
            _logger.exception("A step of a login failed.")
            result.message = "The login failed: its worker has a fault; see the worker's log."
        self._outgoing.send(sync_pb2.SyncRequest(login_result=result))


async def _take(step: sync_pb2.LoginStep, links: LoginLinks, result: sync_pb2.LoginResult) -> None:
    if step.state:
        subject = await links.finish(step.state, dict(step.answer))
    elif step.ticket:
        subject = links.subject(step.ticket)
        if step.redirect_uri:
            begun = await links.begin(step.ticket, step.redirect_uri)
            result.authorization_url, result.state = begun
    else:
        subject = LoginSubject(step.server_id, step.tenant, step.user)
        result.ticket = links.link(subject)
    result.server_id, result.tenant, result.user = subject.server, subject.tenant, subject.user
