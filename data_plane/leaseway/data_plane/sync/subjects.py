"""Lists servers for the tenants and users that they act for (design.md#tokens-for-remote-servers).

What one of them may use is decided by the control plane, which knows the rules of names: it gets
the listing and returns a toolset, by which the calls of that tenant or user are checked.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from google.protobuf.message import Message

from leaseway.data_plane.core.ports import NO_PROMPTS_RESOURCES
from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.core.tools.toolset import CompiledToolset
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import InstanceOwner, LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.sync.convert import add_lists, problem_to_proto, toolset_from_proto
from leaseway.data_plane.sync.outgoing import Outgoing
from leaseway.spec.codec import key_from_proto, key_to_proto
from leaseway.spec.model import VariantKey
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT: Final = 2.0
"""Seconds that calls wait for the control plane; then they use the toolset of all."""
_TOLD_AT_ONCE: Final = 64
"""Listings that wait at once to be told to a control plane that has just begun."""
_MAX_WAITING: Final = 1_024
"""Remembered subjects who have not logged in."""


class SubjectLists:
    """Lists a server once for each subject whose connections this worker has.

    Args:
        pool: The served generations.
        outgoing: Sends the listings.
    """

    def __init__(self, pool: Pool, outgoing: Outgoing) -> None:
        self._pool = pool
        self._outgoing = outgoing
        self._context = pool.context
        self._tasks: dict[Generation, asyncio.Task[None]] = {}
        self._answers: dict[Generation, asyncio.Event] = {}
        self._sent: WeakKeyDictionary[Generation, bytes] = WeakKeyDictionary()
        """The digest of what was sent last: the lists of thousands of users are not kept here."""
        self._toolsets: WeakValueDictionary[bytes, CompiledToolset] = WeakValueDictionary()
        """By digest: most users see the same."""
        self._asked_again: set[Generation] = set()
        """Those that were asked for while their task waited for the answer to their listing."""
        self._telling: asyncio.Task[None] | None = None
        self._waiting: dict[VariantKey, VariantKey] = {}
        """Who has not logged in, with the variant that they would use."""
        self._context.events.started.connect(self._on_started)
        self._context.events.listing_needed.connect(self._on_listing_needed)
        self._context.events.logins_changed.connect(self._on_logins_changed)
        self._context.events.login_ended.connect(self._on_login_ended)

    def send_all(self) -> None:
        """Tell a control plane that may have been restarted what was listed."""
        if self._telling is not None:
            self._telling.cancel()
        ready = []
        for generation in self._pool.subject_generations:
            if _ready(generation) is not None:
                ready.append(generation)
            else:  # listed again by the next call, or when it is asked for
                self._sent.pop(generation, None)
                generation.require_listing()
        self._telling = self._context.background.spawn(
            self._tell(ready), "tell what is listed for tenants and users"
        )

    async def _tell(self, generations: Sequence[Generation]) -> None:
        """Tell what instances have listed; the lists of many are not in memory at once."""
        for number, generation in enumerate(generations):
            if number % _TOLD_AT_ONCE == 0:
                await self._outgoing.flush()
                if not self._outgoing.is_open:
                    return
            live = _ready(generation)
            if live is None or self._pool.find_subject(generation.key) is not generation:
                continue
            if generation in self._sent:
                self._send_known(generation, live)
            else:
                self._start(generation)

    def start(self, asked: sync_pb2.ListSubject) -> None:
        """List a server for a subject; the listing is sent when it ends."""
        key = key_from_proto(asked.key)
        try:
            generation = self._pool.subject_generation(key, asked.tenant, asked.user)
        except Fault as fault:
            generation, why = None, fault.message
        else:
            why = f"Server {key} has changed on this worker."
        if generation is None or generation.launch_hash != asked.launch_hash:
            problem = WorkerProblem("server", Reason.SERVER_NOT_READY.value, why, key)
            message = sync_pb2.SubjectListing(
                key=asked.key,
                launch_hash=asked.launch_hash,
                tenant=asked.tenant,
                user=asked.user,
            )
            self._outgoing.send(self._failed(message, problem))
        elif generation in self._sent and (live := _ready(generation)) is not None:
            self._send_known(generation, live)
        elif generation in self._tasks and generation in self._answers:
            self._asked_again.add(generation)  # by the task, when its listing was answered
        else:
            self._sent.pop(generation, None)
            self._start(generation)

    async def list_again(self, generation: Generation, live: LiveInstance) -> None:
        """Send what an instance of a subject lists now.

        Raises:
            Fault: It could not be listed.
        """
        await generation.relist(live)
        await self._submit(generation, await _listed(generation, live))

    def handle_toolset(self, message: sync_pb2.SubjectToolset) -> None:
        """Check the calls of a subject by its own toolset from now on."""
        key = key_from_proto(message.key)
        generation = self._pool.find_subject(
            VariantKey(key.server_id, message.tenant, message.user)
        )
        if generation is None or generation.launch_hash != message.launch_hash:
            return
        if message.HasField("toolset"):
            try:
                generation.use_toolset(self._compiled(message.toolset, generation))
            except ValueError as error:
                _logger.warning("The toolset of %s cannot be used: %s", generation.key, error)
        answer = self._answers.get(generation)
        if answer is not None:
            answer.set()

    def _compiled(self, toolset: sync_pb2.Toolset, generation: Generation) -> CompiledToolset:
        digest = _digest(toolset)
        compiled = self._toolsets.get(digest)
        if compiled is None:
            compiled = toolset_from_proto(toolset, generation.variant.toolset)
            self._toolsets[digest] = compiled
        return compiled

    def _send_known(self, generation: Generation, live: LiveInstance) -> None:
        """Send what an instance has listed already; nothing waits for the toolset."""
        message = _message(generation)
        add_lists(message.lists, live, is_own=True)
        self._outgoing.send(sync_pb2.SyncRequest(subject_listing=message))

    def _start(self, generation: Generation) -> asyncio.Task[None]:
        task = self._tasks.get(generation)
        if task is None:
            task = self._tasks[generation] = self._context.background.spawn(
                self._list(generation), f"list {generation.key}"
            )
        return task

    async def _list(self, generation: Generation) -> None:
        """List a server with an instance of a subject, or with one that is closed again."""
        try:
            if self._outgoing.is_open:
                await self._list_with_instance(generation)
        except Fault as fault:
            self._handle_failure(generation, fault)
        finally:
            generation.end_listing()
            del self._tasks[generation]
            if generation in self._asked_again:
                self._asked_again.discard(generation)
                self._sent.pop(generation, None)
                self._start(generation)

    async def _list_with_instance(self, generation: Generation) -> None:
        async with generation.connection() as live:
            message = await _listed(generation, live)
        await self._submit(generation, message)

    async def _submit(self, generation: Generation, message: sync_pb2.SubjectListing) -> None:
        """Send a listing unless it was sent, and wait for the toolset that follows."""
        self._waiting.pop(generation.key, None)
        digest = _digest(message)
        if self._sent.get(generation) == digest:
            return
        self._sent[generation] = digest
        answer = self._answers[generation] = asyncio.Event()
        self._outgoing.send(sync_pb2.SyncRequest(subject_listing=message))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ANSWER_TIMEOUT):
                    await answer.wait()
        finally:
            if self._answers.get(generation) is answer:
                del self._answers[generation]

    def _handle_failure(self, generation: Generation, fault: Fault) -> None:
        assert generation.listed_for is not None
        if fault.reason is Reason.LOGIN_REQUIRED and len(self._waiting) < _MAX_WAITING:
            self._waiting[generation.key] = generation.listed_for
        problem = WorkerProblem(
            scope="server",
            reason=fault.reason.value,
            message=fault.message,
            key=generation.key,
            advice=fault.advice,
        )
        # A login may have let thousands try again at once.
        self._outgoing.send_all((self._failed(_message(generation), problem),))

    def _failed(
        self, message: sync_pb2.SubjectListing, problem: WorkerProblem
    ) -> sync_pb2.SyncRequest:
        message.lists.problem.CopyFrom(problem_to_proto(problem, self._context.worker_id))
        return sync_pb2.SyncRequest(subject_listing=message)

    def _on_listing_needed(self, generation: InstanceOwner) -> None:
        if isinstance(generation, Generation):
            self._start(generation)

    def _on_started(self, live: LiveInstance, _restarted: bool) -> None:
        """List with an instance that was started by a call, or again after a change meanwhile."""
        generation = live.owner
        if not isinstance(generation, Generation) or generation.listed_for is None:
            return
        if generation not in self._sent or live.lists_other(generation.variant.toolset):
            self._start(generation)

    def _on_logins_changed(self) -> None:
        """List for who had not logged in before, so that what they see follows the login."""
        waiting, self._waiting = self._waiting, {}
        for subject, variant in waiting.items():
            with suppress(Fault):
                generation = self._pool.subject_generation(variant, subject.tenant, subject.user)
                if generation is not None:
                    self._start(generation)

    def _on_login_ended(self, subject: VariantKey, listed_for: VariantKey) -> None:
        message = sync_pb2.SubjectListing(
            key=key_to_proto(listed_for), tenant=subject.tenant, user=subject.user
        )
        generation = self._pool.find(listed_for)
        if generation is not None:
            message.launch_hash = generation.launch_hash
            self._outgoing.send_all((sync_pb2.SyncRequest(subject_listing=message),))


def _ready(generation: Generation) -> LiveInstance | None:
    """Return an instance that has listed for whom its generation serves, or None."""
    return next((live for live in generation.instances if live.is_ready), None)


def _digest(message: Message) -> bytes:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).digest()


async def _listed(generation: Generation, live: LiveInstance) -> sync_pb2.SubjectListing:
    """Return what an instance lists for whom its generation serves.

    Raises:
        Fault: The instance has ended.
    """
    await live.instance.list_prompts_resources(live.spec.startup_timeout, NO_PROMPTS_RESOURCES)
    message = _message(generation)
    add_lists(message.lists, live, is_own=True)
    return message


def _message(generation: Generation) -> sync_pb2.SubjectListing:
    assert generation.listed_for is not None  # it belongs to a subject
    key = generation.key
    return sync_pb2.SubjectListing(
        key=key_to_proto(generation.listed_for),
        launch_hash=generation.launch_hash,
        tenant=key.tenant,
        user=key.user,
    )
