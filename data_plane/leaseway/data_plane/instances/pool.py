"""Every generation of a worker, and which of them new calls use (DESIGN §3, step 6)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from leaseway.data_plane.core.desired_state import Changes, DesiredState, HeldVariant, Update, apply
from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.instances.context import WorkerContext
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.stderr_history import KeptLog
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.policy import ServerPolicy
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import nearest

_PROBED_FOR: Final = 60.0
"""How long a probe's instance waits for the delta that wants it, in seconds."""
_TRIED_AGAIN: Final = 0.5
_FOR_NOBODY: Final = ServerPolicy(grants={})
"""Seconds after which callers of a server that is being tried may ask again."""


class _Probed:
    """Owns a probe's instance until the delta comes that wants it.

    Attributes:
        launch_hash: What the instance was started from.
        live: The instance.
        changed: Whether the server said that its tools changed, which nobody has looked at yet.

    Args:
        on_end: Called when the instance has ended, or is about to, without being asked.
    """

    def __init__(self, launch_hash: str, live: LiveInstance, on_end: Callable[[str], None]) -> None:
        self.launch_hash = launch_hash
        self.live = live
        self.changed = False
        self._on_end = on_end
        self._timer = asyncio.get_running_loop().call_later(
            _PROBED_FOR, on_end, f"was not wanted within {_PROBED_FOR:g} s"
        )
        live.owner = self

    def give_up(self) -> None:
        """Ignore the instance from now on."""
        self._timer.cancel()
        self.live.owner = None

    def on_instance_ended(self, live: LiveInstance, fault: Fault | None) -> None:
        self._on_end("ended" if fault is None else fault.message)

    def on_instance_idle(self, live: LiveInstance) -> None:
        """Do nothing: it runs no calls."""

    def on_instance_tools_changed(self, live: LiveInstance) -> None:
        self.changed = True

    def on_instance_disconnected(self, live: LiveInstance) -> None:
        self._on_end("gave no sign of life")

    def on_instance_warning(self, live: LiveInstance, reason: str, text: str) -> None:
        """Do nothing: nobody calls it."""

    def on_instance_warning_cleared(self, live: LiveInstance, reason: str) -> None:
        """Do nothing: nothing was warned of."""


class Pool:
    """What a worker serves: the desired state, and the generations behind it.

    Attributes:
        registry_version: What callers may ask for.

    Args:
        context: What every generation needs.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._holdings = DesiredState()
        self._current: dict[VariantKey, Generation] = {}
        self._draining: list[Generation] = []
        self._common: dict[str, Generation] = {}
        self._own: dict[str, dict[str, Generation]] = {}
        self._probed: dict[VariantKey, _Probed] = {}
        self._tried: list[ServerSpec] = []
        self._moved: asyncio.Future[None] | None = None
        self.registry_version = 0

    @property
    def desired_state(self) -> DesiredState:
        return self._holdings

    @property
    def context(self) -> WorkerContext:
        """What every generation needs."""
        return self._context

    @property
    def generations(self) -> Iterable[Generation]:
        """All generations that have an instance or may get one, the current ones first."""
        self._draining = [old for old in self._draining if not (old.draining and old.is_empty)]
        return (*self._current.values(), *self._draining)

    @property
    def current_generations(self) -> Iterable[Generation]:
        """The generations that new calls use."""
        return self._current.values()

    def resolve(self, server_id: str, tenant: str, agent: str = "") -> Generation:
        """Return the generation that new calls of a caller use.

        Raises:
            Fault: TOOL_NOT_FOUND, with the nearest ids; or SERVER_NOT_READY: it is tried here.
        """
        if self._own:
            own = self._own.get(server_id)
            if own is not None and tenant in own:
                return self._granted(own[tenant], server_id, tenant, agent)
        return self._granted(self._common.get(server_id), server_id, tenant, agent)

    def _granted(
        self, generation: Generation | None, server_id: str, tenant: str, agent: str
    ) -> Generation:
        """Return a generation to callers for whom it exists.

        One that never was takes the way of one that is granted to nobody: time tells nothing.
        """
        policy = generation.variant.spec.policy if generation is not None else _FOR_NOBODY
        if policy.grants is not None and not policy.sees(tenant, agent):
            raise self._server_missing(server_id, tenant, agent)
        assert generation is not None
        return generation

    def _server_missing(self, server_id: str, tenant: str, agent: str) -> Fault:
        # No more can be said: a delta names what is up, and who tries the rest is one worker.
        if any(
            spec.key.server_id == server_id
            and spec.key.tenant in ("", tenant)
            and spec.policy.sees(tenant, agent)
            for spec in self._tried
        ):
            return Fault(
                Reason.SERVER_NOT_READY,
                f"Server {server_id} has not come up yet: worker {self._context.worker_id} is "
                "trying it. Call again in a moment; `leaseway problems` says why if it does not.",
                metadata={"server": server_id},
                retry_delay=_TRIED_AGAIN,
            )
        known = [each.key.server_id for each in self.desired_state.visible_to(tenant, agent)]
        near = nearest(server_id[:64], known)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        return Fault(
            Reason.TOOL_NOT_FOUND,
            f"Worker {self._context.worker_id} serves no server {server_id[:64]}.{hint} One that "
            "is not up yet is not known here; ask the control plane (ResolveTools).",
            metadata={"nearest": ",".join(near)} if near else {},
        )

    @contextlib.contextmanager
    def probing(self, spec: ServerSpec) -> Iterator[None]:
        """Tell callers that may see a server which is not up yet that it is being tried."""
        self._tried.append(spec)
        try:
            yield
        finally:
            self._tried.remove(spec)

    def find(self, key: VariantKey) -> Generation | None:
        return self._current.get(key)

    def commit(self, update: Update) -> Changes:
        """Apply an update: new calls use the new generations from now on."""
        self._holdings, changes = apply(self._holdings, update)
        for variant in changes.removed:
            self._retire(variant.key)
            self._forget_probed(variant.key)
        for variant in changes.launched:
            self._launch(variant)
        for variant in changes.exposed:
            self._current[variant.key].expose(variant)
            self._report_schemas(variant)
        self._index()
        self.registry_version = self._holdings.registry_version
        if self._moved is not None:
            self._moved.set_result(None)
            self._moved = None
        return changes

    def _launch(self, variant: HeldVariant) -> None:
        replaced = self._current.pop(variant.key, None)
        serving = self._serving(replaced)
        if serving is not None and serving.launch_hash == variant.launch_hash:  # taken back
            self._drain(replaced)
            self._draining.remove(serving)
            self._current[variant.key] = serving
            serving.expose(variant)
        else:
            self._begin(Generation(variant, self._context), replaced, serving)
        self._report_schemas(variant)

    @staticmethod
    def _serving(replaced: Generation | None) -> Generation | None:
        """Return whose instance answers shared calls until the next generation has one."""
        if replaced is None:
            return None
        older = replaced.part_with_predecessor()
        return older if older is not None and replaced.shared is None else replaced

    def _begin(
        self, fresh: Generation, replaced: Generation | None, serving: Generation | None
    ) -> None:
        self._current[fresh.key] = fresh
        probed = self._probed.get(fresh.key)
        if probed is not None and probed.launch_hash == fresh.launch_hash:
            del self._probed[fresh.key]
            probed.give_up()
            fresh.adopt(probed.live)
            if probed.changed:
                fresh.on_instance_tools_changed(probed.live)
        else:
            self._forget_probed(fresh.key)
        self._hand_over(fresh, replaced, serving)
        fresh.begin()

    def _hand_over(
        self, fresh: Generation, replaced: Generation | None, serving: Generation | None
    ) -> None:
        """Drain an older generation, at once or when the fresh one has an instance."""
        if serving is not None and fresh.can_follow(serving):
            fresh.follow_on(serving)
            if serving is replaced:
                self._draining.append(serving)
                return
        elif serving is not None and serving is not replaced:
            serving.drain()
        self._drain(replaced)

    def replace(self, old: Generation, live: LiveInstance | None = None) -> bool:
        """Replace a generation by a new one of the same definition (DESIGN §3, local generations).

        Args:
            old: What is replaced; it drains.
            live: The first instance of the new one, up already; or None to start with none.

        Returns:
            False where something newer has taken over already; nothing is done then.
        """
        if self._current.get(old.key) is not old:
            return False
        serving = self._serving(old)
        fresh = self._current[old.key] = Generation(old.variant, self._context)
        if live is not None:
            fresh.adopt(live)
        self._hand_over(fresh, old, serving)
        self._index()
        fresh.begin()
        return True

    def _retire(self, key: VariantKey) -> None:
        self._drain(self._current.pop(key, None))

    def _drain(self, generation: Generation | None) -> None:
        if generation is not None:
            generation.drain()
            self._draining.append(generation)

    def _report_schemas(self, variant: HeldVariant) -> None:
        found = variant.toolset.schema_problems
        problem = WorkerProblem(
            "server", "SCHEMA_NOT_COMPILED", " ".join(found), variant.key, severity="warning"
        )
        if found:
            self._context.reports.report_problem(problem)
        else:
            self._context.reports.clear_problem(problem)

    def _index(self) -> None:
        self._common = {
            key.server_id: generation for key, generation in self._current.items() if not key.tenant
        }
        self._own = {}
        for key, generation in self._current.items():
            if key.tenant:
                self._own.setdefault(key.server_id, {})[key.tenant] = generation

    def keep_probe_instance(self, launch_hash: str, live: LiveInstance) -> None:
        """Keep a probe's instance for the delta that wants it, for at most 60 s.

        One whose server is to start lazily is closed: a file of hundreds is not to hold them all.
        """
        key = live.spec.key
        self._forget_probed(key)
        if not live.spec.outlives_probe or not live.is_ready:
            self._context.background.spawn(live.close(), f"close the probe's instance of {key}")
            return
        current = self._current.get(key)
        if current is not None and current.launch_hash == launch_hash:
            current.adopt_spare(live)
            return
        self._probed[key] = _Probed(launch_hash, live, lambda how: self._forget_probed(key, how))

    def _forget_probed(self, key: VariantKey, how: str = "closed") -> None:
        probed = self._probed.pop(key, None)
        if probed is not None:
            probed.give_up()
            self._context.logs.keep(key, probed.live.instance, how)
            self._context.background.spawn(
                probed.live.close(), f"close the unused instance of {key}"
            )

    def logs(self, server_id: str, tenant: str) -> list[KeptLog]:
        """Return what the instances of a server wrote to stderr, the oldest first.

        Raises:
            Fault: TOOL_NOT_FOUND: neither is it served nor has it written anything.
        """
        try:
            key = self.resolve(server_id, tenant).key
        except Fault:
            key = VariantKey(server_id)
            if not self._context.logs.read(key):
                raise
        running = [
            KeptLog(live.instance.id, tuple(lines), "running", live.instance.pid or 0)
            for generation in self.generations
            if generation.key == key
            for live in generation.live_instances
            if (lines := live.instance.stderr.lines())
        ]
        return [*self._context.logs.read(key), *running]

    async def wait_for_version(self, version: int) -> None:
        """Wait until a registry version is reached, for at most 2 s.

        Raises:
            Fault: NOT_APPLIED: this worker is behind.
        """
        try:
            async with asyncio.timeout(bounds.BEHIND_WAIT):
                while self.registry_version < version:
                    if self._moved is None:
                        self._moved = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._moved)
        except TimeoutError:
            raise Fault(
                Reason.NOT_APPLIED,
                f"Worker {self._context.worker_id} has reached registry version "
                f"{self.registry_version} and not yet {version}; try another worker.",
                retry_delay=0.5,
            ) from None

    async def close(self) -> None:
        """End every instance."""
        for key in tuple(self._probed):
            self._forget_probed(key)
        await asyncio.gather(*(generation.close() for generation in self.generations))
