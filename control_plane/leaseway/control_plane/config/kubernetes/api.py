"""The Kubernetes API, as far as Leaseway asks it: resources, their status, events, one Lease.

Every failure is a `KubernetesFailure` whose message says what was asked, what came back and what
to do. The client library is imported here alone, and only when a control plane is told to use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import httpx2
import lightkube
import yaml
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.events_v1 import Event
from lightkube.types import PatchType

from leaseway.control_plane.config.kubernetes.resources import (
    GROUP,
    KINDS,
    VERSION,
    CustomResource,
    Kind,
    parse_resource,
)
from leaseway.control_plane.leadership import LeaseConflict, LeaseFailure, LeaseRecord

_TIMEOUT: Final = 10.0
_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError)
"""What the library raises for a file that it cannot make sense of, such as an empty one."""
_SILENCE: Final = 60.0
"""Seconds without an event after which a watch is ended: its connection may have been cut."""
_CONTROLLER: Final = "leaseway.dev/control-plane"
_LONGEST_NOTE: Final = 1_000


class KubernetesFailure(OSError):
    """The API cannot be asked, or did not answer as it should; the message is a sentence."""


class KubernetesRefusal(KubernetesFailure):
    """The API answered, and did not do what it was asked for; it may well do something else."""


@dataclass(frozen=True)
class ResourceList:
    """All resources of one kind, and the version from which changes to them are told."""

    resources: tuple[CustomResource, ...]
    version: str


@contextlib.asynccontextmanager
async def open_api(namespace: str) -> AsyncIterator[KubernetesApi]:
    """Yield the API that this process's surroundings name.

    In a pod that is the cluster's own, with the pod's service account; elsewhere what the
    environment variable KUBECONFIG, or the user's own file, says.

    Raises:
        KubernetesFailure: They name none.
    """
    try:
        client = lightkube.AsyncClient(
            namespace=namespace, timeout=httpx2.Timeout(_TIMEOUT), field_manager="leaseway"
        )
    except (ConfigError, OSError, yaml.YAMLError, *_MALFORMED) as error:
        why = str(error) or type(error).__name__
        raise KubernetesFailure(
            f"No Kubernetes API is known here: {why}. Run this in a pod, or set KUBECONFIG."
        ) from None
    try:
        yield KubernetesApi(client, namespace)
    finally:
        await client.close()


def _generic(kind: Kind) -> type[GenericNamespacedResource]:
    return create_namespaced_resource(GROUP, VERSION, kind, KINDS[kind])


class KubernetesApi:
    """What is asked of the API in one namespace.

    Args:
        client: The library's client.
        namespace: Where the resources are.
    """

    def __init__(self, client: lightkube.AsyncClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self._types: dict[Kind, Any] = {kind: _generic(kind) for kind in KINDS}

    async def list(self, kind: Kind) -> ResourceList:
        """Return all resources of a kind.

        Raises:
            KubernetesFailure: They cannot be listed.
        """
        what = f"list {KINDS[kind]} of the namespace {self.namespace}"
        with _failures(what):
            found = self.client.list(self._types[kind], namespace=self.namespace, chunk_size=500)
            resources = tuple([parse_resource(kind, each) async for each in found])
            return ResourceList(resources, found.resourceVersion)

    async def changes(
        self, kind: Kind, version: str
    ) -> AsyncGenerator[tuple[str, CustomResource], None]:
        """Yield each change after a version, as (`ADDED`, `MODIFIED` or `DELETED`, resource).

        Ends where nothing has changed for a while; whoever wants more lists again first.

        Raises:
            KubernetesFailure: They cannot be watched, or the version is too old.
        """
        what = f"watch {KINDS[kind]} of the namespace {self.namespace}"
        watch = self.client.watch(
            self._types[kind],
            namespace=self.namespace,
            resource_version=version,
            server_timeout=int(_SILENCE * 2),
        )
        events = aiter(watch)
        with _failures(what):
            while True:
                try:
                    async with asyncio.timeout(_SILENCE):
                        change, found = await anext(events)
                except (TimeoutError, StopAsyncIteration):
                    return
                yield change, parse_resource(kind, found)

    async def write_status(self, resource: CustomResource, status: Mapping[str, Any]) -> None:
        """Replace the fields of a resource's status that are given.

        Raises:
            KubernetesFailure: The API did not take it. A resource that is gone is none.
        """
        with _failures(f"write the status of {resource}", but=(404,)):
            await self.client.patch(
                self._types[resource.kind].Status,
                resource.name,
                {"status": dict(status)},
                namespace=resource.namespace,
                patch_type=PatchType.MERGE,
            )

    async def record_event(
        self, resource: CustomResource, kind: str, reason: str, note: str
    ) -> None:
        """Make an event about a resource.

        Args:
            resource: What it is about.
            kind: `Normal` or `Warning`.
            reason: In one word.
            note: A sentence; it is cut where the API would refuse it.

        Raises:
            KubernetesFailure: The API did not take it.
        """
        about = ObjectReference(
            apiVersion=f"{GROUP}/{VERSION}",
            kind=resource.kind,
            name=resource.name,
            namespace=resource.namespace,
            uid=resource.uid,
        )
        event = Event(
            metadata=ObjectMeta(
                generateName=f"{resource.name}-"[:200], namespace=resource.namespace
            ),
            eventTime=datetime.now(UTC),
            type=kind,
            reason=reason,
            note=note[:_LONGEST_NOTE],
            action="Configure",
            regarding=about,
            reportingController=_CONTROLLER,
            reportingInstance=os.environ.get("HOSTNAME") or socket.gethostname(),
        )
        with _failures(f"make an event about {resource}"):
            await self.client.create(event)


class KubernetesLease:
    """The Lease that says who leads.

    Args:
        client: The library's client.
        namespace: Where it is.
        name: What it is called.
    """

    def __init__(self, client: lightkube.AsyncClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> LeaseRecord | None:
        try:
            with self._failures("read"):
                return _record(await self._client.get(Lease, self._name, namespace=self._namespace))
        except _LeaseNotFound:
            return None

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Make the Lease and return it as it is kept."""
        lease = self._lease(record)
        lease.spec.acquireTime = lease.spec.renewTime  # type: ignore[union-attr]
        with self._failures("make"):
            return _record(await self._client.create(lease))

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        """Write the Lease, if it still is of the record's version."""
        with self._failures("write"):
            return _record(await self._client.replace(self._lease(record)))

    def _lease(self, record: LeaseRecord) -> Lease:
        metadata = ObjectMeta(
            name=self._name, namespace=self._namespace, resourceVersion=record.version or None
        )
        spec = LeaseSpec(
            holderIdentity=record.holder,
            leaseDurationSeconds=record.duration,
            leaseTransitions=record.transitions,
            renewTime=datetime.now(UTC),
        )
        return Lease(metadata=metadata, spec=spec)

    @contextlib.contextmanager
    def _failures(self, verb: str) -> Any:
        try:
            with _failures(f"{verb} the Lease {self._namespace}/{self._name}", raw=(404, 409)):
                yield
        except ApiError as error:
            if error.status.code == 409:
                raise LeaseConflict from None
            raise _LeaseNotFound from None
        except KubernetesFailure as failure:
            raise LeaseFailure(str(failure)) from None


class _LeaseNotFound(Exception):
    """There is no such object."""


def _record(lease: Lease) -> LeaseRecord:
    spec, metadata = lease.spec or LeaseSpec(), lease.metadata or ObjectMeta()
    made = metadata.creationTimestamp
    return LeaseRecord(
        holder=spec.holderIdentity or "",
        duration=spec.leaseDurationSeconds or 15,
        transitions=spec.leaseTransitions or 0,
        renewed=str(spec.renewTime or ""),
        created=0 if made is None else int(made.timestamp()),
        version=metadata.resourceVersion or "",
    )


@contextlib.contextmanager
def _failures(what: str, *, but: tuple[int, ...] = (), raw: tuple[int, ...] = ()) -> Any:
    """Turn the library's errors into sentences; statuses of `but` are none, `raw` ones pass."""
    try:
        yield
    except ApiError as error:
        code = error.status.code or 0
        if code in raw:
            raise
        if code not in but:
            raise _refusal(what, code, error.status.message or "") from None
    except httpx2.HTTPStatusError as error:  # so the library passes on what a watch is answered
        answer = error.response
        raise _refusal(what, answer.status_code, answer.reason_phrase) from None
    except (httpx2.HTTPError, ConfigError, OSError) as error:
        why = str(error) or type(error).__name__
        raise KubernetesFailure(f"The Kubernetes API can't be reached to {what}: {why}.") from None


def _refusal(what: str, code: int, message: str) -> KubernetesFailure:
    hint = {
        401: " Its token is missing or out of date.",
        403: " Give its service account that right: see the chart's Role.",
        404: " Are the custom resource definitions installed? See the chart's folder crds.",
    }.get(code, "")
    of_this_alone = 400 <= code < 500 and code not in (401, 429)
    kind = KubernetesRefusal if of_this_alone else KubernetesFailure
    return kind(f"The Kubernetes API did not {what} ({code}): {message.rstrip('.')}.{hint}")
