"""All generations of a worker, and which of them new calls use (design.md#reload, step 6)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from leaseway.data_plane.core.desired_state import Changes, DesiredState, HeldVariant, Update, apply
from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.core.subjects import is_of_token, subject_name
from leaseway.data_plane.instances.context import StderrLog, WorkerContext
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import InstanceOwner, LiveInstance
from leaseway.data_plane.oauth.errors import no_caller_token
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.policy import ServerPolicy
from leaseway.wire import bounds
from leaseway.wire.advice import for_operators
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import check_caller_names
from leaseway.wire.signals import Signal
from leaseway.wire.text.suggestions import alike

_PROBE_INSTANCE_LIFETIME: Final = 60.0
"""Seconds that a probe's instance waits for the delta that uses it."""
_PROBE_RETRY_DELAY: Final = 0.5
"""Seconds after which callers of a server that is being probed may try again."""
_LOGIN_IDLE: Final = 600.0
"""Seconds after which a tenant's unused connection to a server that it logs in to is closed."""
_GRANTED_TO_NONE: Final = ServerPolicy(grants={})


class _ProbeInstance(InstanceOwner):
    """Owns a probe's instance until a delta uses it.

    Attributes:
        tools_changed: Whether the server reported a change of its tools meanwhile.

    Args:
        launch_hash: The launch hash of the instance.
        live: The instance.
        on_end: Called with the cause when the instance has ended, is about to, or is too old.
    """

    def __init__(self, launch_hash: str, live: LiveInstance, on_end: Callable[[str], None]) -> None:
        self.launch_hash = launch_hash
        self.live = live
        self.tools_changed = False
        self._on_end = on_end
        self._timer = asyncio.get_running_loop().call_later(
            _PROBE_INSTANCE_LIFETIME, on_end, f"was unused for {_PROBE_INSTANCE_LIFETIME:g} s"
        )
        live.give_to(self)

    def release(self) -> LiveInstance:
        """Return the instance, which has no owner from now on."""
        self._timer.cancel()
        self.live.give_to(None)
        return self.live

    def on_instance_ended(self, live: LiveInstance, fault: Fault | None) -> None:
        self._on_end("ended" if fault is None else fault.message)

    def on_instance_tools_changed(self, live: LiveInstance) -> None:
        self.tools_changed = True

    def on_instance_disconnected(self, live: LiveInstance) -> None:
        self._on_end("did not respond")


class Pool:
    """The desired state of a worker and its generations.

    Attributes:
        context: What all generations share.
        desired_state: The served variants.
        registry_version: The version that callers may require.
        resolves_anew: Announces that `resolve` may return other generations from now on, or these
            with other settings.
    """

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.desired_state = DesiredState()
        self.registry_version = 0
        self.resolves_anew: Signal[()] = Signal()
        self._current: dict[VariantKey, Generation] = {}
        self._draining: list[Generation] = []
        self._common: dict[str, Generation] = {}
        self._of_tenants: dict[str, dict[str, Generation]] = {}
        self._of_logins: dict[VariantKey, Generation] = {}
        """The generations of tenants and users that log in, by server and subject."""
        self._probe_instances: dict[VariantKey, _ProbeInstance] = {}
        self._probing: list[ServerSpec] = []
        self._version_reached: asyncio.Future[None] | None = None

    @property
    def generations(self) -> Iterable[Generation]:
        """All generations that have or may start instances, the current ones first."""
        self._draining = [old for old in self._draining if not (old.draining and not old.instances)]
        return (*self._current.values(), *self._of_logins.values(), *self._draining)

    @property
    def current_generations(self) -> Iterable[Generation]:
        """The generations that new calls use."""
        return self._current.values()

    def find(self, key: VariantKey) -> Generation | None:
        """Return the current generation of a variant."""
        return self._current.get(key)

    @property
    def subject_generations(self) -> tuple[Generation, ...]:
        """The generations of tenants and users for whom servers are listed."""
        generations = self._of_logins.values()
        return tuple(generation for generation in generations if generation.listed_for is not None)

    def find_subject(self, key: VariantKey) -> Generation | None:
        """Return the current generation of a server's tenant or user."""
        return self._of_logins.get(key)

    def subject_generation(self, key: VariantKey, tenant: str, user: str) -> Generation | None:
        """Return the generation of a tenant or user, or None if there is no such variant.

        Args:
            key: The variant that serves the tenant.
            tenant: The tenant.
            user: Its user, or empty for the tenant itself.

        Raises:
            Fault: USER_REQUIRED or INVALID_REQUEST.
        """
        common = self._current.get(key)
        if common is None or not common.variant.spec.part.auth.is_of_people:
            return None
        return self._of_subject(common, tenant, user)

    def variant_for(self, variant: HeldVariant, tenant: str, user: str) -> HeldVariant:
        """Return a variant as its server lists it for a tenant or user, if that is known."""
        if variant.subject == "service":
            return variant
        own_user = "" if variant.subject == "tenant" else user
        own = self._of_logins.get(VariantKey(variant.key.server_id, tenant, own_user))
        return own.variant if own is not None else variant

    def resolve(
        self,
        server_id: str,
        tenant: str,
        agent: str = "",
        user: str | None = None,
        subject_token: str | None = None,
    ) -> Generation:
        """Return the generation that new calls of a caller use.

        Args:
            server_id: The server.
            tenant: The caller's tenant.
            agent: The caller's agent, or empty.
            user: The caller's user, or empty for none; None if only the configuration is needed.
            subject_token: The token of whoever the call is for, or empty for none; None if `user`
                is the subject of what is already running.

        Raises:
            Fault: TOOL_NOT_FOUND, with the nearest ids; SERVER_NOT_READY: it is being probed here;
                USER_REQUIRED: it acts for users.
        """
        generation = self._common.get(server_id)
        if self._of_tenants:
            generation = self._of_tenants.get(server_id, {}).get(tenant, generation)
        # A missing server takes the code path of one that is granted to no caller, so that the
        # response time does not reveal that it exists.
        policy = generation.variant.spec.policy if generation is not None else _GRANTED_TO_NONE
        if policy.grants is not None and not policy.is_visible(tenant, agent):
            raise self._not_found(server_id, tenant, agent)
        assert generation is not None
        subject = generation.variant.subject
        if subject == "service" or user is None or (subject == "tenant" and generation.key.tenant):
            return generation
        if subject == "caller" and subject_token is not None:
            if not subject_token:
                raise no_caller_token(server_id)
            user = subject_name(user, subject_token)
            key = VariantKey(server_id, tenant, user)
            self.context.callers.give(key, subject_token)
        return self._of_subject(generation, tenant, user)

    def _of_subject(self, common: Generation, tenant: str, user: str) -> Generation:
        """Return the generation with a tenant's or a user's own connections to a server.

        The one of all only stands for the server: nobody's calls use its connection.

        See design.md#tokens-for-remote-servers.

        Raises:
            Fault: USER_REQUIRED or INVALID_REQUEST.
        """
        server_id = common.key.server_id
        if common.variant.subject == "tenant":
            key = VariantKey(server_id, tenant)
        elif user:
            key = VariantKey(server_id, tenant, user)
        else:
            raise _user_required(server_id)
        generation = self._of_logins.get(key)
        if generation is None:
            check_caller_names(tenant=tenant, user=user)
            if len(self._of_logins) >= bounds.MAX_OAUTH_GRANTS:
                self._forget_login(self._unused_login())
            spec = common.variant.spec
            resting = replace(
                spec,
                key=key,
                instances=replace(
                    spec.instances, idle_timeout=spec.instances.idle_timeout or _LOGIN_IDLE
                ),
            )
            variant = replace(common.variant, spec=resting)
            generation = self._of_logins[key] = Generation(
                variant, self.context, None if is_of_token(user) else common.key
            )
            generation.needs_listing = not is_of_token(user)
        return generation

    def retry_logins(self) -> None:
        """Start at once what could not start for want of a login."""
        for key, generation in tuple(self._of_logins.items()):
            if generation.needs_login:
                self._forget_login(key)
        for generation in tuple(self._current.values()):
            if generation.needs_login:
                self.replace(generation, keeps_logins=True)
        self.context.events.logins_changed.emit()

    def end_logins(self, subjects: Collection[VariantKey]) -> None:
        """Close the connections of tenants and users whose login has ended, also during calls."""
        for key in subjects:
            generation = self._of_logins.pop(key, None)
            if generation is not None:
                self._drain(generation)
                generation.end_all(f"the login to server {key} has ended")
            listed_for = self._variant_for(key)
            if listed_for is not None:
                self.context.events.login_ended.emit(key, listed_for)
        for generation in tuple(self._current.values()):
            if generation.key in subjects:  # it stands for all
                self.replace(generation, keeps_logins=True)
                self._current[generation.key].drain_predecessor()  # it has no login either
                generation.end_all(f"the login to server {generation.key} has ended")

    def replace_logins(self, subjects: Collection[VariantKey]) -> None:
        """Let calls of who has logged in again use new connections, and list anew for them.

        Calls in flight and leases go on with the connections that they have, and the new token.
        """
        for key in subjects:
            old = self._of_logins.get(key)
            common = self._current.get(self._variant_for(key) or key)
            if old is None or common is None:
                continue
            self._forget_login(key)
            if old.listed_for is not None:
                fresh = self._of_subject(common, key.tenant, key.user)
                self.context.events.listing_needed.emit(fresh)
        for generation in tuple(self._current.values()):
            if generation.key in subjects:  # it stands for all
                self.replace(generation, keeps_logins=True)

    def _variant_for(self, subject: VariantKey) -> VariantKey | None:
        """Return the variant that the calls of a tenant or user use."""
        common = self._common.get(subject.server_id)
        own = self._of_tenants.get(subject.server_id, {}).get(subject.tenant, common)
        return own.key if own is not None else None

    def _unused_login(self) -> VariantKey:
        unused = (key for key, generation in self._of_logins.items() if not generation.instances)
        return next(unused, next(iter(self._of_logins)))

    def _forget_login(self, key: VariantKey) -> None:
        self._drain(self._of_logins.pop(key))

    def _forget_logins(self, server_id: str) -> None:
        """Let calls use new connections of a server from now on."""
        for key in [key for key in self._of_logins if key.server_id == server_id]:
            self._forget_login(key)

    def artifact_limit(self, server_id: str, tenant: str) -> int | None:
        """Return a tenant's limit of bytes of artifacts, or None if there is none."""
        try:
            limits = self.resolve(server_id, tenant).variant.spec.policy.limits_of(tenant)
        except Fault:  # the server was removed
            return None
        return limits.artifact_bytes if limits is not None else None

    def _not_found(self, server_id: str, tenant: str, agent: str) -> Fault:
        # Deltas contain only servers that have started, and only one worker probes the others.
        if any(
            spec.key.server_id == server_id
            and spec.key.tenant in ("", tenant)
            and spec.policy.is_visible(tenant, agent)
            for spec in self._probing
        ):
            return Fault(
                Reason.SERVER_NOT_READY,
                f"Server {server_id} has not started yet: worker {self.context.worker_id} is "
                "probing it. Call again in a moment.",
                metadata={
                    "server": server_id,
                    **for_operators("`leaseway problems` shows why if it fails."),
                },
                retry_delay=_PROBE_RETRY_DELAY,
            )
        visible = self.desired_state.visible_to(tenant, agent)
        near = alike(server_id[:64], [variant.key.server_id for variant in visible])
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        return Fault(
            Reason.TOOL_NOT_FOUND,
            f"Worker {self.context.worker_id} serves no server {server_id[:64]}.{hint} A server "
            "that has not started yet is unknown here; ask the control plane (ResolveTools).",
            metadata={"nearest": ",".join(near)} if near else {},
        )

    @contextlib.contextmanager
    def probing(self, spec: ServerSpec) -> Iterator[None]:
        """Answer callers of a server with SERVER_NOT_READY while it is being probed."""
        self._probing.append(spec)
        try:
            yield
        finally:
            self._probing.remove(spec)

    def commit(self, update: Update) -> Changes:
        """Apply an update: new calls use the new generations from now on."""
        self.desired_state, changes = apply(self.desired_state, update)
        for variant in (*changes.removed, *changes.launched, *changes.exposed):
            self._forget_logins(variant.key.server_id)
        for variant in changes.removed:
            self._drain(self._current.pop(variant.key, None))
            self._close_probe_instance(variant.key)
        removed = {variant.key: "" for variant in changes.removed}
        launched = {variant.key: variant.launch_hash for variant in changes.launched}
        self.context.reports.clear_outdated({**removed, **launched})
        for variant in changes.launched:
            self._launch(variant)
        for variant in changes.exposed:
            self._current[variant.key].update_exposure(variant)
            self._report_schemas(variant)
        self._index()
        self.registry_version = self.desired_state.registry_version
        if self._version_reached is not None:
            self._version_reached.set_result(None)
            self._version_reached = None
        return changes

    def _launch(self, variant: HeldVariant) -> None:
        replaced = self._current.pop(variant.key, None)
        serving = _pop_serving(replaced)
        if serving is not None and serving.launch_hash == variant.launch_hash:
            # The change was reverted before an instance of it had started.
            self._drain(replaced)
            self._draining.remove(serving)
            self._current[variant.key] = serving
            serving.update_exposure(variant)
            serving.start()  # its spares were stopped, if the change wanted none
        else:
            self._start(Generation(variant, self.context), replaced, serving)
        self._report_schemas(variant)

    def _start(
        self, fresh: Generation, replaced: Generation | None, serving: Generation | None
    ) -> None:
        self._current[fresh.key] = fresh
        probe = self._probe_instances.get(fresh.key)
        if probe is not None and probe.launch_hash == fresh.launch_hash:
            del self._probe_instances[fresh.key]
            live = probe.release()
            fresh.adopt(live)
            if probe.tools_changed:
                fresh.on_instance_tools_changed(live)
        else:
            self._close_probe_instance(fresh.key)
        self._drain_replaced(fresh, replaced, serving)
        fresh.start()

    def _drain_replaced(
        self, fresh: Generation, replaced: Generation | None, serving: Generation | None
    ) -> None:
        """Drain the older generation, now or when the fresh one has an instance.

        At most two generations of a server stand in line: the fresh one, and the one that has an
        instance (`serving`) and answers until the fresh one has. If a second change comes before
        that, the generation between them (`replaced`) never served anybody: it is drained at once,
        and the fresh one defers to the same `serving`. A line of several waiting ones would keep
        failed launches alive, each with its own restarts.
        """
        if serving is not None and fresh.can_defer_to(serving):
            fresh.defer_to(serving)
            if serving is replaced:
                self._draining.append(serving)
                return
        elif serving is not None and serving is not replaced:
            serving.drain()
        self._drain(replaced)

    def replace(
        self, old: Generation, live: LiveInstance | None = None, *, keeps_logins: bool = False
    ) -> bool:
        """Replace a generation by a new one of the same definition.

        Args:
            old: The generation to drain.
            live: The first instance of the new generation, already started, or None.
            keeps_logins: Whether the connections of tenants and users stay.

        Returns:
            False, with nothing done, if a newer generation has replaced it already.

        See design.md#reload, local generations.
        """
        if self._current.get(old.key) is not old:
            return False
        if not keeps_logins:
            self._forget_logins(old.key.server_id)
        serving = _pop_serving(old)
        fresh = self._current[old.key] = Generation(old.variant, self.context)
        if live is not None:
            fresh.adopt(live)
        self._drain_replaced(fresh, old, serving)
        self._index()
        fresh.start()
        return True

    def _drain(self, generation: Generation | None) -> None:
        if generation is not None:
            generation.drain()
            self._draining.append(generation)

    def _report_schemas(self, variant: HeldVariant) -> None:
        problems = variant.toolset.schema_problems
        self.context.reports.set_problem(
            WorkerProblem(
                "server", "SCHEMA_NOT_COMPILED", " ".join(problems), variant.key, severity="warning"
            ),
            bool(problems),
        )

    def _index(self) -> None:
        self._common = {}
        self._of_tenants = {}
        for key, generation in self._current.items():
            if key.tenant:
                self._of_tenants.setdefault(key.server_id, {})[key.tenant] = generation
            else:
                self._common[key.server_id] = generation
        self.resolves_anew.emit()

    def keep_probe_instance(self, launch_hash: str, live: LiveInstance) -> None:
        """Keep a probe's instance for the delta that uses it, for at most 60 s.

        An instance of a server that starts lazily is closed: there may be hundreds of them.
        """
        key = live.spec.key
        self._close_probe_instance(key)
        if not live.spec.outlives_probe or not live.is_ready:
            self.context.background.spawn(live.close(), f"close the probe's instance of {key}")
            return
        current = self._current.get(key)
        if current is not None and current.launch_hash == launch_hash:
            current.adopt_if_empty(live)
            return
        self._probe_instances[key] = _ProbeInstance(
            launch_hash, live, partial(self._close_probe_instance, key)
        )

    def end_unused_launch(self, key: VariantKey, launch_hash: str) -> None:
        """End the problems of a launch that was probed, unless its server is served with it."""
        current = self._current.get(key)
        if current is None or current.launch_hash != launch_hash:
            self.context.reports.clear_launch(key, launch_hash)

    def _close_probe_instance(self, key: VariantKey, state: str = "closed") -> None:
        probe = self._probe_instances.pop(key, None)
        if probe is not None:
            live = probe.release()
            self.context.stderr_history.add(key, live.instance, state)
            self.context.background.spawn(live.close(), f"close the unused instance of {key}")

    def logs(self, server_id: str, tenant: str) -> list[StderrLog]:
        """Return the stderr of the instances of a server, the oldest first.

        Raises:
            Fault: TOOL_NOT_FOUND: it is not served and has no stderr history.
        """
        try:
            key = self.resolve(server_id, tenant).key
        except Fault:
            key = VariantKey(server_id)
            if not self.context.stderr_history.get(key):
                raise
        running = [
            StderrLog(live.instance.id, tuple(lines), "running", live.instance.pid or 0)
            for generation in self.generations
            if generation.key == key
            for live in generation.instances
            if (lines := live.instance.stderr.lines())
        ]
        return [*self.context.stderr_history.get(key), *running]

    async def wait_for_version(self, version: int) -> None:
        """Wait until a registry version is reached, for at most 2 s.

        Raises:
            Fault: NOT_APPLIED: this worker is behind.
        """
        try:
            async with asyncio.timeout(bounds.BEHIND_WAIT):
                while self.registry_version < version:
                    if self._version_reached is None:
                        self._version_reached = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._version_reached)
        except TimeoutError:
            raise Fault(
                Reason.NOT_APPLIED,
                f"Worker {self.context.worker_id} has reached registry version "
                f"{self.registry_version} and not yet {version}; try another worker.",
                retry_delay=0.5,
            ) from None

    async def close(self) -> None:
        """Close every instance."""
        for key in tuple(self._probe_instances):
            self._close_probe_instance(key)
        await asyncio.gather(*(generation.close() for generation in self.generations))


def _user_required(server_id: str) -> Fault:
    return Fault(
        Reason.USER_REQUIRED,
        f"Server {server_id} acts for users, and this call is for none. Call it with the credential"
        " of a user; or, with a credential of the role delegate, name the user"
        " (client.session(key, user=...)).",
        metadata={"server": server_id},
    )


def _pop_serving(replaced: Generation | None) -> Generation | None:
    """Return the generation whose instance serves until the next generation has one."""
    if replaced is None:
        return None
    predecessor = replaced.pop_predecessor()
    return predecessor if predecessor is not None and replaced.shared is None else replaced
