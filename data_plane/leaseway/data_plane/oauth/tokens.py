"""The tokens of a worker: when one is requested, how often, and who waits for it.

For each client, server and subject there is one token and at most one attempt at a time, whoever
waits for it. A token is renewed before it expires, while calls use the old one. A failed attempt is
repeated with backoff only, and callers meanwhile get its fault at once
(design.md#tokens-for-remote-servers).
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from leaseway.data_plane.core.ports import ChangedLogins, InstanceListener
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.oauth.caller_tokens import CallerTokens
from leaseway.data_plane.oauth.challenges import Challenge, Doubt, challenge_of
from leaseway.data_plane.oauth.errors import (
    AuthorizationError,
    fault_of,
    needs_scopes,
    no_caller_token,
    unaccepted,
)
from leaseway.data_plane.oauth.logins.links import LoginLinks
from leaseway.data_plane.oauth.obtaining import (
    TRUSTED,
    Attempt,
    Nonce,
    ObtainToken,
    Token,
    Wanted,
    obtain,
)
from leaseway.data_plane.oauth.proofs import USE_NONCE
from leaseway.data_plane.oauth.requests import Client, TokenAnswer
from leaseway.data_plane.outgoing import Authorization, Credential
from leaseway.spec.canonical import canonical_bytes
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.vault.logins import LoginKey
from leaseway.wire import bounds
from leaseway.wire.advice import LOGIN_PAGE
from leaseway.wire.channels.fetching import in_thread
from leaseway.wire.errors import OF_AUTHORIZATION, Fault, Reason
from leaseway.wire.sharing.newest import Newest
from leaseway.wire.timing.backoff import AWAIT_LOGIN, REQUEST_REFUSED_TOKEN, REQUEST_TOKEN

_logger = logging.getLogger(__name__)
_MAX_ATTEMPTS: Final = 8
"""Attempts for one server and tenant at the same time; each has a thread. An authorization server
that is slow, or a tenant with many tokens, delays the tokens of no other server and tenant."""
_MAX_THREADS: Final = 256
"""Attempts of a worker at the same time."""
_MAX_SCOPES: Final = 100
_LAST: Final = 5.0
"""Seconds for a renewal in progress: a refresh token that is being spent must be replaced."""
_TRIED: Final = 60.0
"""Seconds before scopes that were not granted are requested again."""


class InstanceProblems:
    """Reports failed attempts as warnings of an instance, until a token was obtained."""

    def __init__(self, listener: InstanceListener, instance: object) -> None:
        self._listener = listener
        self._instance = instance

    def report(self, fault: Fault) -> None:
        self._listener.on_warning(self._instance, fault.metadata["problem"], fault.message)

    def clear(self) -> None:
        for reason in OF_AUTHORIZATION:
            self._listener.on_warning_cleared(self._instance, reason.value)


class TokenAuthorization:
    """The authorization of one instance's requests; an `outgoing.Authorization`."""

    def __init__(self, grant: _Grant, problems: InstanceProblems) -> None:
        self._grant = grant
        self._problems = problems  # the grant holds it weakly
        grant.listeners.add(problems)

    async def credential(self) -> Credential | None:
        """Return the token that a request presents; None if it is not known which one is needed.

        Raises:
            Fault: AUTHORIZATION_FAILED or LOGIN_REQUIRED.
        """
        return await self._grant.current()

    async def refused(
        self, sent: Credential | None, status: int, headers: Mapping[str, str]
    ) -> bool:
        """Return whether a request that the server refused should be sent again.

        Args:
            sent: What it presented, or None.
            status: The status of the response.
            headers: Its headers; names match without regard to case.

        Raises:
            Fault: AUTHORIZATION_FAILED or LOGIN_REQUIRED.
        """
        return await self._grant.refused(sent, challenge_of(status, headers))

    def without_token(self, text: str) -> str:
        """Return a text without the token in use."""
        return self._grant.without_token(text)


class CallerAuthorization:
    """The authorization of requests for whoever calls, by the token that `callers` has for them.

    Args:
        grant_of: Returns the grant of a caller's token.
        callers: The tokens that callers bring.
        spec: The server, for one subject.
        problems: Of the instance.
    """

    def __init__(
        self,
        grant_of: Callable[[str], _Grant],
        callers: CallerTokens,
        spec: ServerSpec,
        problems: InstanceProblems,
    ) -> None:
        self._grant_of = grant_of
        self._callers = callers
        self._subject = spec.key
        self._problems = problems
        self._token = ""
        self._grant: _Grant | None = None

    def _current(self) -> _Grant:
        token = self._callers.of(self._subject)
        if self._grant is None or token != self._token:
            if not token:
                raise no_caller_token(self._subject.server_id)
            self._token, self._grant = token, self._grant_of(token)
            self._grant.listeners.add(self._problems)
        return self._grant

    async def credential(self) -> Credential | None:
        """Return the token that a request presents, as `TokenAuthorization.credential`.

        Raises:
            Fault: AUTHORIZATION_FAILED, or USER_REQUIRED: no call has brought a token.
        """
        return await self._current().current()

    async def refused(
        self, sent: Credential | None, status: int, headers: Mapping[str, str]
    ) -> bool:
        """Return whether to send a refused request again, as `TokenAuthorization.refused`.

        Raises:
            Fault: AUTHORIZATION_FAILED, also if the caller's token does not suffice for the scopes
                that the server asks for.
        """
        challenge = challenge_of(status, headers)
        grant = self._current()
        if challenge.error != "insufficient_scope":
            return await grant.refused(sent, challenge)
        try:
            is_renewed = await grant.refused(sent, challenge)
        except Fault as fault:
            if fault.retry_delay is not None:  # nothing is known about the scopes
                raise
            is_renewed = False
        if not is_renewed:
            raise needs_scopes(self._subject.server_id, challenge.scope)
        return True

    def without_token(self, text: str) -> str:
        """Return a text without the token in use."""
        return text if not self._callers.of(self._subject) else self._current().without_token(text)


class Tokens:
    """All tokens of a worker, by client, server and subject: the last 4,096 that were used.

    Args:
        obtain_token: Obtains one; called in a thread.
        now: The monotonic clock.
        granted: Returns when people logged in, of logins that have changed; called in a thread.
        callers: The tokens that callers bring.
        links: Makes the links at which people log in, or None.
    """

    def __init__(
        self,
        obtain_token: ObtainToken = obtain,
        now: Callable[[], float] = time.monotonic,
        granted: Callable[[Collection[LoginKey]], Mapping[LoginKey, float | None]] | None = None,
        callers: CallerTokens | None = None,
        links: LoginLinks | None = None,
    ) -> None:
        self._callers = callers or CallerTokens()
        self._obtain = obtain_token
        self._now = now
        self._granted = granted
        self._links = links
        self._grants: Newest[Hashable, _Grant] = Newest(bounds.MAX_OAUTH_GRANTS)
        # While an attempt for a server runs or waits, its slots exist.
        self._slots: weakref.WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = (
            weakref.WeakValueDictionary()
        )
        self._threads = asyncio.Semaphore(_MAX_THREADS)

    def authorization(
        self,
        spec: ServerSpec,
        resolved: ResolvedValues,
        problems: InstanceProblems,
    ) -> Authorization | None:
        """Return the authorization of an instance's requests, or None if its server has none."""
        auth = spec.part.auth
        if not auth:
            return None
        server, client = spec.key.server_id, Client.of(auth, resolved.auth)
        tenant, user = spec.key.tenant, spec.key.user
        if auth.subject == "service":
            tenant = ""  # a tenant's own variant of the server uses the same token
        wanted = Wanted(
            server=server,
            url=resolved.url,
            auth=auth,
            client=client,
            tenant=tenant,
            user=user,
            values=resolved.auth,
            assertion=resolved.assertion,
        )
        if auth.subject == "caller" and user:
            return CallerAuthorization(partial(self._grant, wanted), self._callers, spec, problems)
        return TokenAuthorization(self._grant(wanted), problems)

    def _grant(self, wanted: Wanted, subject_token: str = "") -> _Grant:
        """Return what is known about a token; `subject_token` is the caller's own, if any."""
        settings = canonical_bytes(replace(wanted.auth, values={}))
        values = tuple(sorted(wanted.values.items()))
        subject = (wanted.tenant, wanted.user, subject_token)
        key = (wanted.server, wanted.url, values, subject, settings)
        grant = self._grants.get(key) or _Grant(
            replace(wanted, subject_token=subject_token), self._attempt, self._now, self._links
        )
        if self._links is not None and wanted.auth.logs_in:
            self._links.record(wanted)
        self._grants[key] = grant
        return grant

    async def follow_logins(self) -> ChangedLogins:
        """Look at the logins again, which have changed; return whose have changed.

        The tokens of logins that somebody has ended or replaced are forgotten.
        """
        held: dict[LoginKey, list[_Grant]] = {}
        for grant in self._grants.values():
            login = grant.login or grant.lacking
            grant.retry_login()
            if login is not None:
                held.setdefault(login, []).append(grant)
        if not held or self._granted is None:
            return ChangedLogins()
        ended, replaced = set[VariantKey](), set[VariantKey]()
        for login, granted_at in (await in_thread(self._granted, tuple(held))).items():
            for grant in held[login]:
                if granted_at is None and grant.has_token:
                    ended.add(grant.drop())
                elif granted_at not in (None, grant.granted_at):
                    replaced.add(grant.drop())
        return ChangedLogins(ended, replaced)

    async def aclose(self) -> None:
        """Abandon the attempts in progress, after those that may be renewing a login, for 5 s."""
        await asyncio.gather(*(grant.aclose() for grant in self._grants.values()))

    async def _attempt(self, wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        key = (wanted.server, wanted.tenant)
        slots = self._slots.get(key)
        if slots is None:
            slots = self._slots[key] = asyncio.Semaphore(_MAX_ATTEMPTS)
        async with slots, self._threads:
            return await in_thread(self._obtain, wanted, attempt)


class _Grant:
    """The token of one client for one server and subject."""

    def __init__(
        self,
        wanted: Wanted,
        attempt: Callable[[Wanted, Attempt], Awaitable[TokenAnswer]],
        now: Callable[[], float],
        links: LoginLinks | None,
    ) -> None:
        self._links = links
        self.login: LoginKey | None = None  # of a person, that the last token is from
        self.granted_at = 0.0
        self.listeners: weakref.WeakSet[InstanceProblems] = weakref.WeakSet()
        self._wanted = wanted
        self._attempt = attempt
        self._now = now
        self._token: Token | None = None
        self._nonce, self._asked_proof = Nonce(), False
        self._challenge: Challenge | None = None
        self._scopes: tuple[str, ...] = ()
        self._tried: dict[str, float] = {}  # until when a scope is not requested again
        self._step_up: asyncio.Task[None] | None = None
        self._doubt, self._questioned_until = Doubt(), 0.0
        self._lacks_login = False  # the server has not asked for one
        # Changes of logins: all, and at the last looks for one and for another one.
        self._changes, self._looked_at, self._doubted_at = 0, -1, 0
        self._failures, self._not_before = 0, 0.0
        self._fault: Fault | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def has_token(self) -> bool:
        return self._token is not None

    @property
    def lacking(self) -> LoginKey | None:
        """The login without which its requests are sent, as nobody has asked for it; or None."""
        return self._wanted.login if self._lacks_login else None

    def retry_login(self) -> None:
        """Let the next call look for a login at once."""
        self._changes += 1
        if self._fault is not None and self._fault.reason is Reason.LOGIN_REQUIRED:
            self._failures, self._not_before = 0, 0.0

    def drop(self) -> VariantKey:
        """Forget the token; return whose it was."""
        self._token, self._lacks_login, self._failures, self._not_before = None, False, 0, 0.0
        if self._challenge is None:
            self._challenge = Challenge(401)  # never a request without a token again
        return VariantKey(self._wanted.server, self._wanted.tenant, self._wanted.user)

    async def current(self) -> Token | None:
        """Return the token in use, after it was obtained; None if nothing says which is needed.

        Raises:
            Fault: There is none.
        """
        token = self._token
        if token is None:
            if self._challenge is None and not self._wanted.auth.names_server:
                # Its refusal will name its authorization server, if it needs a token at all.
                return await self._of_login()
        else:
            now = self._now()
            if now < token.renew_at:
                return token
            if now < token.expires_at:
                if now >= self._not_before:
                    self._start(self._usual_attempt())
                return token
        return await self._renewed(self._usual_attempt())

    async def _of_login(self) -> Token | None:
        """Return the token of a login that there is already; None if there is none.

        Raises:
            Fault: The login has ended, or cannot be renewed now.
        """
        if self._looked_at == self._changes or self._wanted.auth.grant != "authorization_code":
            return None
        return await self._attempted(replace(self._usual_attempt(), is_optional=True))

    def _usual_attempt(self) -> Attempt:
        return Attempt(self._challenge or Challenge(401), self._scopes)

    async def refused(self, sent: Credential | None, challenge: Challenge) -> bool:
        """Return whether to send a refused request again, as `TokenAuthorization.refused`.

        Raises:
            Fault: There is no token for it.
        """
        token = self._token
        if token is not None and (sent is None or token.header != sent.header):
            return True  # it was renewed meanwhile
        if sent is None and challenge.status == 403:
            challenge = replace(challenge, status=401)  # some servers say 401 so
        is_bound = token is not None and token.answer.key is not None
        if is_bound and challenge.error == USE_NONCE:  # the token is good, the proof was not
            return bool(self._nonce.newest)
        if challenge.status == 403:  # the token stays good for other requests
            if await self._stepped_up(challenge):
                return True
            return not self._added_scopes(challenge) and await self._doubted(token)
        added = self._added_scopes(challenge)
        must_bind = challenge.asks_only_proof and not is_bound and not self._asked_proof
        self._asked_proof = self._asked_proof or must_bind
        is_trusted = token is not None and self._now() < token.trusted_until
        if token is not None and is_trusted and not added and not must_bind:
            return await self._on_new_refused(token, challenge)
        self._scopes = (*self._scopes, *added)
        self._challenge = challenge
        refused = token.answer.access_token if token is not None else ""
        await self._renewed(Attempt(challenge, self._scopes, refused))
        return True

    async def _stepped_up(self, challenge: Challenge) -> bool:
        """Return whether there is a token with more scopes, which is requested at most once.

        Raises:
            Fault: The authorization server does not grant them.
        """
        if challenge.error != "insufficient_scope":
            return False
        if self._step_up is None:
            now = self._now()
            added = self._added_scopes(challenge)
            is_due = self._wanted.auth.logs_in  # its person may grant them at any time
            if not any(is_due or now >= self._tried.get(scope, 0.0) for scope in added):
                return False  # this client may not do it, with any token
            self._tried = {
                **{scope: end for scope, end in self._tried.items() if now < end},
                **dict.fromkeys(added, now + _TRIED),
            }
            self._step_up = asyncio.get_running_loop().create_task(self._add(challenge, added))
            self._step_up.add_done_callback(self._end_step_up)
        await asyncio.shield(self._step_up)
        return True

    async def _add(self, challenge: Challenge, added: tuple[str, ...]) -> None:
        """Obtain a token with more scopes; all later ones have them, too."""
        while self._running is not None:  # an attempt without them
            await asyncio.wait([self._running])
        scopes, failures = (*self._scopes, *added), self._failures
        try:
            await self._renewed(Attempt(challenge, scopes))
        except Fault:
            self._failures, self._not_before = failures, 0.0  # that was about these scopes only
            raise
        self._scopes = scopes

    def _end_step_up(self, task: asyncio.Task[None]) -> None:
        self._step_up = None
        if not task.cancelled():
            task.exception()  # whoever waits gets it

    async def _doubted(self, token: Token | None) -> bool:
        """Return whether another token was obtained because this one may not be known any more.

        Raises:
            Fault: LOGIN_REQUIRED: it has ended, and so has its login.
        """
        if token is None or self._now() < self._not_before:
            return False
        now, is_own = self._now(), self._running is None  # an attempt in progress may help, too
        is_due = is_own and self._doubt.is_due(token, now, is_new=now < token.trusted_until)
        if is_own:
            may_be_other = self._wanted.is_of_anybody and self._doubted_at != self._changes
            if not is_due and not may_be_other:
                return False
            self._doubted_at = self._changes
        attempt = replace(self._usual_attempt(), refused=token.answer.access_token)
        try:
            found = await self._renewed(replace(attempt, is_new=not is_due, is_doubted=True))
        except Fault as fault:
            if fault.reason is Reason.LOGIN_REQUIRED:
                raise
            if is_own:
                self._end_fault()  # the server has answered, after all
            return False
        if is_due:
            self._doubt.end(found)
        return found.header != token.header

    async def _on_new_refused(self, token: Token, challenge: Challenge) -> bool:
        """Find out, once in a while, whether the server has moved since a person logged in.

        The token is not renewed: a server that refuses all tokens would spend the login.
        """
        has_login = self._wanted.auth.grant == "authorization_code"
        if not has_login or self._now() < self._questioned_until:
            raise unaccepted(self._wanted)
        self._questioned_until = self._now() + TRUSTED
        refused = token.answer.access_token
        found = await self._renewed(Attempt(challenge, self._scopes, refused, is_new=True))
        if found.header == token.header:
            raise unaccepted(self._wanted)
        return True

    def _added_scopes(self, challenge: Challenge) -> tuple[str, ...]:
        """Return the scopes that the server asks for and that were never requested."""
        if challenge.status == 403 and challenge.error != "insufficient_scope":
            return ()
        known = {*self._wanted.auth.scopes, *self._scopes}
        if self._token is not None:
            known |= set(self._token.answer.scope.split())
        asked = tuple(dict.fromkeys(challenge.scope.split()))
        added = tuple(scope for scope in asked if scope not in known)
        return added if len(self._scopes) + len(added) <= _MAX_SCOPES else ()

    async def aclose(self) -> None:
        tasks = [task for task in (self._step_up, self._running) if task is not None]
        if tasks and self._wanted.auth.logs_in:
            await asyncio.wait(tasks, timeout=_LAST)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def without_token(self, text: str) -> str:
        token = self._token
        return text if token is None else text.replace(token.answer.access_token, "[hidden]")

    async def _renewed(self, attempt: Attempt) -> Token:
        """Return a new token, after waiting for the attempt in progress.

        Raises:
            Fault: There is none.
        """
        while (token := await self._attempted(attempt)) is None:
            pass  # the attempt in progress was for a request that may need none
        return token

    async def _attempted(self, attempt: Attempt) -> Token | None:
        """Return a new token as `_renewed` does; None if it is optional, and there is no login."""
        if self._running is None:
            wait = self._not_before - self._now()
            if wait > 0 and self._fault is not None:
                is_busy = self._fault.retry_delay is not None
                raise replace(self._fault, retry_delay=wait if is_busy else None)
            self._start(attempt)
        assert self._running is not None
        await asyncio.shield(self._running)
        if self._fault is not None:
            raise replace(self._fault)
        return self._token

    def _start(self, attempt: Attempt) -> None:
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run(attempt))

    async def _run(self, attempt: Attempt) -> None:
        server, changes = self._wanted.server, self._changes
        refused = "" if attempt.is_doubted else attempt.refused
        try:
            answer = await self._attempt(self._wanted, attempt)
        except AuthorizationError as error:
            if attempt.is_optional and error.lacks_login:
                self._lacks_login, self._looked_at = True, changes
                self._end_fault()
            else:
                self._fail(error, refused)
        except Exception:  # whoever waits must learn of any failure
            _logger.exception("Obtaining a token for the server %s failed.", server)
            self._fail(AuthorizationError("the worker failed; see its log"), refused)
        else:
            self._token = Token.of(answer, self._now(), self._nonce)
            # A login after requests without one is new: its connection is to be replaced.
            is_late = self._lacks_login and answer.login == self._wanted.login
            self.granted_at = 0.0 if is_late else answer.granted_at
            self.login, self._lacks_login = answer.login, False
            self._end_fault()
            _logger.debug("Obtained a token for the server %s.", server)
        finally:
            self._running = None

    def _end_fault(self) -> None:
        self._failures, self._not_before, self._fault = 0, 0.0, None
        for listener in tuple(self.listeners):
            listener.clear()

    def _fail(self, error: AuthorizationError, refused: str) -> None:
        if error.is_lasting:
            backoff = REQUEST_REFUSED_TOKEN
        else:
            backoff = AWAIT_LOGIN if error.needs_login else REQUEST_TOKEN
        delay = max(error.retry_delay or 0.0, backoff.ceiling(self._failures))
        self._failures += 1
        self._not_before = self._now() + delay
        fault = self._fault = fault_of(self._wanted, error)
        if error.needs_login and self._links is not None:
            url = self._links.url_for(self._wanted)
            if url:  # it lets whoever has it log in, so it is in no message
                fault.metadata = {**fault.metadata, LOGIN_PAGE: url}
        fault.retry_delay = None if error.is_lasting or error.needs_login else delay
        token = self._token
        if token is not None and (refused or self._now() >= token.expires_at):
            self._token = None
        _logger.info("%s", fault.message)
        if error.is_of_caller or (self._wanted.user and error.lacks_login):
            return  # nobody but the caller can change that, and the caller is told
        for listener in tuple(self.listeners):
            listener.report(fault)
