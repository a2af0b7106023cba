"""Client of the Kubernetes API: custom resources, their status, events, one Lease.

Every failure is a `KubernetesFailure` whose message names the request, the response and advice.
Only this module imports the client library, and it is imported only if `--config` needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import lightkube
import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
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
    ResourceKind,
    parse_resource,
)
from leaseway.control_plane.leadership import LeaseConflict, LeaseFailure, LeaseRecord
from leaseway.wire.file_stamp import FileStamp, file_stamp
from leaseway.wire.timing.retry_after import retry_delay

_TIMEOUT: Final = 10.0
_PAGES: Final = 6
"""Timeouts of one request that a list may take, which may have many pages."""
_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError)
"""Raised by the library for a malformed file, answer of the API, or output of the plugin."""
_UNUSABLE: Final = (ConfigError, OSError, yaml.YAMLError, *_MALFORMED)
"""Raised for a file, or a pod's service account, that names no API."""
_PLUGIN: Final = "the program that KUBECONFIG names for credentials"
_MAX_SILENCE: Final = 60.0
"""Seconds without an event until a watch ends: its connection may be dead."""
_MAX_WAIT: Final = 60.0
"""Seconds that the API may ask to wait until a request is sent again."""
_UNMATCHED: Final = "the server rejected our request due to an error in our request"
"""All that the API says of a patch whose `test` fails; what else is wrong with one is named."""
_CONTROLLER: Final = "leaseway.dev/control-plane"


class KubernetesFailure(OSError):
    """The API is unavailable, or did not answer as expected; the message is a sentence.

    Attributes:
        retry_after: For how many seconds the API asks to wait, at most a minute; None if it does
            not, as it does when it has too many requests.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class KubernetesRefusal(KubernetesFailure):
    """The API rejected one request; others may succeed."""


@dataclass(frozen=True)
class CustomResourceList:
    """All resources of one kind, and the version to watch for changes from."""

    resources: tuple[CustomResource, ...]
    version: str


@contextlib.asynccontextmanager
async def open_api(namespace: str, timeout: float = _TIMEOUT) -> AsyncIterator[KubernetesApi]:
    """Yield the API that this process's environment names.

    In a pod, it is the API of the cluster, with the pod's service account. Elsewhere, the file in
    the environment variable KUBECONFIG or the user's own file names it. A request has `timeout`
    seconds.

    Raises:
        KubernetesFailure: No API is configured.
    """
    try:
        client = ApiClient(namespace, timeout)
    except _UNUSABLE as error:
        reason = str(error) or type(error).__name__
        advice = "Run this in a pod, or set KUBECONFIG."
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            advice = "This pod has no token: set automountServiceAccountToken to true."
        raise KubernetesFailure(
            f"No Kubernetes API is configured here: {reason}. {advice}"
        ) from None
    try:
        yield KubernetesApi(client, namespace, timeout)
    finally:
        await client.close()


class ApiClient:
    """The library's client of the API that this process's environment names.

    The library reads the file of KUBECONFIG once, and the files that it names: its token,
    certificates and address. Other programs replace them, so they are read again after a failure
    that this may mend.

    Args:
        namespace: The namespace of requests that name none.
        timeout: Seconds for one answer.
    """

    def __init__(self, namespace: str, timeout: float) -> None:
        self._open = partial(
            lightkube.AsyncClient,
            namespace=namespace,
            timeout=httpx2.Timeout(timeout),
            field_manager="leaseway",
        )
        config = _config()
        self._stamps = _stamps(config)
        self._newest = self._open(config)
        self._earlier: lightkube.AsyncClient | None = None
        """The one before, which watches may still use."""

    async def close(self) -> None:
        for client in filter(None, (self._newest, self._earlier)):
            await client.close()

    @contextlib.asynccontextmanager
    async def request(
        self,
        request: str,
        *,
        ignored: tuple[int, ...] = (),
        raw: tuple[int, ...] = (),
        timeout: float | None = _TIMEOUT,
    ) -> AsyncIterator[lightkube.AsyncClient]:
        """Yield the client for one request; turn the library's errors into `KubernetesFailure`.

        Those with a `raw` status pass. The timeout is in seconds, and includes a program that
        KUBECONFIG names for credentials.
        """
        client = self._newest
        try:
            async with asyncio.timeout(timeout):
                yield client
        except ApiError as error:
            code = error.status.code or 0
            if code in raw:
                raise
            if code == 401:
                await self._replace(client, refused=True)
            if code not in ignored:
                raise _refusal(request, code, error.status.message or "", error.response) from None
        except httpx2.HTTPStatusError as error:  # the library raises this one for watches
            answer = error.response
            if answer.status_code == 401:
                await self._replace(client, refused=True)
            raise _refusal(request, answer.status_code, answer.reason_phrase, answer) from None
        except (httpx2.HTTPError, ConfigError, OSError, RuntimeError) as error:
            # The last one is raised between two pages of a list whose client was closed.
            await self._replace(client, refused=False)
            reason = str(error) or type(error).__name__
            if isinstance(error, TimeoutError):
                reason = f"{reason}, also if {_PLUGIN} does not end"
            raise KubernetesFailure(
                f"The Kubernetes API can't be reached to {request}: {reason}."
            ) from None
        except _MALFORMED as error:
            raise KubernetesFailure(
                f"The Kubernetes API did not {request}: its answer, or what {_PLUGIN} has written, "
                f"can't be read ({type(error).__name__}: {error})."
            ) from None

    async def _replace(self, failed: lightkube.AsyncClient, *, refused: bool) -> None:
        if failed is not self._newest:
            return  # another request has failed with it
        with contextlib.suppress(*_UNUSABLE):  # a file that is being replaced
            config = _config()
            stamps = _stamps(config)
            if not refused and config == failed.config and stamps == self._stamps:
                return  # a new client would only run the program for credentials once more
            earlier, self._newest, self._earlier = self._earlier, self._open(config), failed
            self._stamps = stamps
            if earlier is not None:
                await earlier.close()


def _config() -> SingleConfig | None:
    return KubeConfig.from_env().get()


def _stamps(config: SingleConfig | None) -> list[FileStamp]:
    """Return the stamps of the certificates and keys that are in files of their own."""
    if config is None:
        return []
    user = config.user
    named = [config.cluster.certificate_auth]
    named += [user.client_cert, user.client_key] if user is not None else []
    return [file_stamp(Path(config.abs_file(path))) for path in named if path]


def _generic(kind: ResourceKind) -> type[GenericNamespacedResource]:
    return create_namespaced_resource(GROUP, VERSION, kind, KINDS[kind])


class KubernetesApi:
    """The API's custom resources and events in one namespace."""

    def __init__(self, client: ApiClient, namespace: str, timeout: float = _TIMEOUT) -> None:
        self.client = client
        self.namespace = namespace
        self._timeout = timeout
        self._types: dict[ResourceKind, Any] = {kind: _generic(kind) for kind in KINDS}

    async def list(self, kind: ResourceKind) -> CustomResourceList:
        """Return all resources of a kind.

        Raises:
            KubernetesFailure: They cannot be listed.
        """
        request = f"list {KINDS[kind]} of the namespace {self.namespace}"
        async with self.client.request(request, timeout=_PAGES * self._timeout) as client:
            found = client.list(self._types[kind], namespace=self.namespace, chunk_size=500)
            resources = tuple([parse_resource(kind, item) async for item in found])
            return CustomResourceList(resources, found.resourceVersion)

    async def changes(
        self, kind: ResourceKind, version: str
    ) -> AsyncGenerator[tuple[str, CustomResource], None]:
        """Yield each change after a version, as (`ADDED`, `MODIFIED` or `DELETED`, resource).

        Ends if nothing changes for a while; to continue, list again first.

        Raises:
            KubernetesFailure: They cannot be watched, or the version is too old.
        """
        request = f"watch {KINDS[kind]} of the namespace {self.namespace}"
        async with self.client.request(request, timeout=None) as client:
            watch = client.watch(
                self._types[kind],
                namespace=self.namespace,
                resource_version=version,
                server_timeout=int(_MAX_SILENCE * 2),
            )
            events = aiter(watch)
            while True:
                try:
                    async with asyncio.timeout(_MAX_SILENCE):
                        change, found = await anext(events)
                except (TimeoutError, StopAsyncIteration):
                    return
                yield change, parse_resource(kind, found)

    async def write_status(self, resource: CustomResource, status: Mapping[str, Any]) -> None:
        """Replace a resource's status; ignore a resource that was deleted, or created again.

        Raises:
            KubernetesFailure: The API rejected it.
        """
        request = f"write the status of {resource}"
        patch = [
            # One that has its name since is another one, of which this status says nothing.
            {"op": "test", "path": "/metadata/uid", "value": resource.uid},
            {"op": "add", "path": "/status", "value": dict(status)},
        ]
        try:
            async with self.client.request(
                request, ignored=(404,), raw=(422,), timeout=self._timeout
            ) as client:
                await client.patch(
                    self._types[resource.kind].Status,
                    resource.name,
                    patch,
                    namespace=resource.namespace,
                    patch_type=PatchType.JSON,
                )
        except ApiError as error:
            message = error.status.message or ""
            if message != _UNMATCHED:
                raise _refusal(request, 422, message) from None

    async def record_event(
        self, resource: CustomResource, kind: str, reason: str, note: str
    ) -> None:
        """Create an event of a kind, `Normal` or `Warning`, with a one-word reason and a sentence.

        The note has at most 1,024 bytes.

        Raises:
            KubernetesFailure: The API rejected it.
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
            note=note,
            action="Configure",
            regarding=about,
            reportingController=_CONTROLLER,
            reportingInstance=os.environ.get("HOSTNAME") or socket.gethostname(),
        )
        request = f"create an event about {resource}"
        async with self.client.request(request, timeout=self._timeout) as client:
            await client.create(event)


class KubernetesLease:
    """The Lease object of the leader election."""

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> LeaseRecord | None:
        try:
            async with self._request("read") as client:
                return _record(await client.get(Lease, self._name, namespace=self._namespace))
        except _LeaseNotFound:
            return None

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Create the Lease and return it as stored."""
        lease = self._lease(record)
        lease.spec.acquireTime = lease.spec.renewTime  # type: ignore[union-attr]
        async with self._request("create") as client:
            return _record(await client.create(lease))

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        """Write the Lease, if it still has the record's version."""
        async with self._request("write") as client:
            return _record(await client.replace(self._lease(record)))

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

    @contextlib.asynccontextmanager
    async def _request(self, verb: str) -> AsyncIterator[lightkube.AsyncClient]:
        try:
            # Only a read may find none: a write without its namespace has failed.
            raw = (404,) if verb == "read" else (409,)
            request = f"{verb} the Lease {self._namespace}/{self._name}"
            async with self._client.request(request, raw=raw) as client:
                yield client
        except ApiError as error:
            if error.status.code == 409:
                raise LeaseConflict from None
            raise _LeaseNotFound from None
        except KubernetesFailure as failure:
            raise LeaseFailure(str(failure)) from None


class _LeaseNotFound(Exception):
    pass


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


def _refusal(
    request: str, code: int, message: str, answer: httpx2.Response | None = None
) -> KubernetesFailure:
    """Return the failure of a request; an event of a watch is no answer of its own."""
    hint = ""
    if code == 401:
        hint = " Its token is missing or out of date."
    elif code == 403 and (message == "Forbidden" or ' is forbidden: User "' in message):
        # Otherwise a quota, a policy or the end of the namespace, which the message names.
        hint = " Give its service account that right: see the chart's Role."
    elif code == 404 and not message.endswith('" not found'):
        hint = " Are the custom resource definitions installed? See the chart's folder crds."
    is_of_request = 400 <= code < 500 and code not in (401, 429)
    text = f"The Kubernetes API did not {request} ({code}): {message.rstrip('.')}.{hint}"
    if is_of_request:
        return KubernetesRefusal(text)
    wait = None if answer is None else retry_delay(answer.headers)
    return KubernetesFailure(text, None if wait is None else min(wait, _MAX_WAIT))
