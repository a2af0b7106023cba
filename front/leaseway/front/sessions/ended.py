"""Sessions that have ended for good, which all fronts refuse to open again.

A session id is valid for days, and any front with the key opens it. So a front tells the control
plane which sessions have ended, asks it before it opens one, and hears of those that end meanwhile.
A control plane that has restarted is told again. While it is unreachable, each front knows only
what it has learned.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection
from itertools import islice
from typing import Final

from leaseway.sdk import AsyncClient, LeasewayError
from leaseway.sdk.relay import hear_session_ends, share_session_ends
from leaseway.wire.bounds import MAX_SESSION_STATE
from leaseway.wire.sharing.newest import Newest

_log = logging.getLogger("leaseway.front")

_MAX_ENDED: Final = 100_000
_MAX_SENT: Final = 1_000
"""Sessions of each kind in one request."""
_MAX_STATES: Final = 1_000
_MAX_STATES_SENT: Final = 64
"""States of sessions in one request, which has at most 5 MiB."""
_TIMEOUT: Final = 2.0
_GATHERING: Final = 0.1
"""Seconds between two requests that wait for ends."""
_PAUSE: Final = 5.0
"""Seconds for which a control plane that does not answer is not asked again."""


class EndedSessions:
    """The keys of the newest 100,000 ended sessions, whose ids are rejected."""

    def __init__(self) -> None:
        self._keys: Newest[str, None] = Newest(_MAX_ENDED)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        self._keys[key] = None

    def discard(self, key: str) -> bool:
        """Forget a key; return whether it was known."""
        return self._keys.pop(key, self) is None


class SharedEnds:
    """The ended sessions of one tenant, shared with other fronts through the control plane.

    Args:
        client: The tenant's client.
        known: The ended sessions that this front knows, of all tenants.
    """

    def __init__(self, client: AsyncClient, known: EndedSessions) -> None:
        self._client = client
        self._known = known
        self._own: Newest[str, None] = Newest(_MAX_ENDED)  # of this tenant
        self._unsent: Newest[str, None] = Newest(_MAX_ENDED)
        self._states: OrderedDict[str, bytes] = OrderedDict()
        self._unsent_states: dict[str, bytes] = {}
        self._run = ""
        self._heard = ("", 0)
        self._paused_until = 0.0

    async def end(self, key: str) -> None:
        """Record that a session has ended, also at the control plane if it answers."""
        self._known.add(key)
        self._own[key] = self._unsent[key] = None
        await self.exchange(())

    async def save(self, key: str, state: bytes) -> None:
        """Record what another front needs to continue a session."""
        if len(state) > MAX_SESSION_STATE:
            _log.info("A session's subscriptions are too long to be known to other fronts.")
            return
        self._unsent_states[key] = self._states[key] = state
        if len(self._states) > _MAX_STATES:
            oldest, _ = self._states.popitem(last=False)
            self._unsent_states.pop(oldest, None)
        await self.exchange(())

    async def ask(self, key: str, *others: str) -> bytes | None:
        """Return what other fronts have recorded of a session, or None if it has ended on one.

        Args:
            key: The session.
            others: Sessions of which only the end is asked.
        """
        if key in self._known:
            return None
        found = await self.exchange((key, *others))
        return None if key in self._known else found.get(key, b"")

    async def hear(self, seconds: float) -> None:
        """Learn for a time which sessions end on other fronts, as soon as they do."""
        now = asyncio.get_running_loop().time
        until = now() + seconds
        while (rest := until - now()) > 0:
            try:
                answer = await hear_session_ends(self._client, *self._heard, rest, _TIMEOUT)
            except LeasewayError:
                await asyncio.sleep(min(rest, _PAUSE))
                continue
            for key in answer.ended:
                self._known.add(key)
            self._heard = answer.run, answer.last
            # An older control plane answers at once. Ends that come together are heard together.
            await asyncio.sleep(max(until - now(), 0.0) if not answer.last else _GATHERING)

    async def exchange(self, asked: Collection[str]) -> dict[str, bytes]:
        """Send the ends that the control plane does not know, and ask about sessions.

        While it does not answer, this does nothing: its outage must not stop sessions.

        Returns:
            What other fronts have recorded of the sessions.
        """
        now = asyncio.get_running_loop().time
        rest, found = list(asked), dict[str, bytes]()
        while now() >= self._paused_until:
            ended = list(self._unsent)[:_MAX_SENT]
            batch, rest = rest[:_MAX_SENT], rest[_MAX_SENT:]
            states = dict(islice(self._unsent_states.items(), _MAX_STATES_SENT))
            try:
                answer = await share_session_ends(self._client, ended, batch, _TIMEOUT, states)
            except LeasewayError:
                self._paused_until = now() + _PAUSE
                break  # what is unsent is sent with a later exchange
            for key in ended:
                self._unsent.pop(key, None)
            for key, state in states.items():
                if self._unsent_states.get(key) is state:
                    del self._unsent_states[key]
            for key in answer.ended:
                self._known.add(key)
            found.update(answer.states)
            if answer.run != self._run:
                if self._run:
                    self._unsent.update(self._own)
                    self._unsent_states = dict(self._states)
                self._run = answer.run
            if not self._unsent and not self._unsent_states and not rest:
                break
        return found

    @property
    def has_own(self) -> bool:
        """Whether a new control plane must be told of sessions."""
        return bool(self._own or self._states)
