"""Creates, watches, attaches to and deletes pods over the Kubernetes API.

The API's address and credentials are read by lightkube, which is loaded when the first server with
an image starts. Requests use the worker's own HTTP client, which can also attach.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from leaseway.data_plane.kinds.container.manifest import CONTAINER, Manifest, Owner
from leaseway.data_plane.mcp.failures import describe_status, not_started
from leaseway.wire.bounds import MIB

_logger = logging.getLogger(__name__)
_SUBPROTOCOL: Final = "v4.channel.k8s.io"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
_WATCH_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10)
_MAX_CHANGE: Final = 2 * MIB
"""Bytes of a line of a watch: the API keeps no object larger than 1.5 MiB."""
_GRACE: Final = 2
_REMOVE_ATTEMPTS: Final = 60
_REMOVE_INTERVAL: Final = 5.0
_WATCH_INTERVAL: Final = 0.5
_RETRY_INTERVAL: Final = 1.0
_BUSY: Final = frozenset({429, 502, 503, 504})
"""Statuses of an API that is overloaded or starts again: the same request may succeed soon."""
_ENDING: Final = 1.0
"""Seconds in which the API should say why a server ended."""
_FATAL: Final = frozenset(
    {"CreateContainerConfigError", "ErrImageNeverPull", "InvalidImageName", "RunContainerError"}
)
"""Reasons of a waiting container that will never run."""
_NO_RIGHT: Final = re.compile(r'[\w./-]+( "[^"]*")? is forbidden: User "')
"""Begins the API's messages about rights: `pods is forbidden: User "x" cannot create …`."""
_GRANT: Final = ": grant its service account this right"
_MEET: Final = "a rule of its namespace, which `podTemplate` and `limits` of the server can meet"
_GRANT_OR_MEET: Final = f"{_GRANT}, unless it is {_MEET}"


class PodFailure(Exception):
    """A request to the API or a pod failed. The text is the middle of a sentence."""


class ApiBusyError(PodFailure):
    """The API did not answer, or could not now: the request is worth another attempt."""


class ExistsError(PodFailure):
    """There is an object of that name already."""


class Ending(NamedTuple):
    """How a pod's server has ended, as a part of a sentence, and its exit status if it exited."""

    text: str
    exit_status: int | None = None


@dataclass(frozen=True)
class ApiAccess:
    """How to reach the API.

    Attributes:
        url: Its address.
        tls: Its trusted certificates, and the worker's client certificate if there is one.
        token: A bearer token, or the file with one, which may be rotated.
        namespace: The namespace of the pods.
    """

    url: str
    tls: ssl.SSLContext
    token: str | Path
    namespace: str

    def headers(self) -> dict[str, str]:
        token = self.token.read_text().strip() if isinstance(self.token, Path) else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


class Pods:
    """The pods of one worker; its environment names its own pod (the downward API)."""

    def __init__(self, environ: Mapping[str, str], http: aiohttp.ClientSession) -> None:
        self._environ = environ
        self._http = http
        self._run = secrets.token_hex(8)
        self._access: ApiAccess | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._removals: set[asyncio.Task[None]] = set()

    async def owner(self, server: str) -> Owner:
        """Return the owner of this worker's pods. Call it before the other methods.

        Raises:
            Fault: SERVER_NOT_READY with `problem` CONTAINER_ENGINE_MISSING.
        """
        name, uid = (self._environ.get(f"LEASEWAY_POD_{fact}", "") for fact in ("NAME", "UID"))
        try:
            if not name or not uid:
                raise PodFailure(
                    "LEASEWAY_POD_NAME and LEASEWAY_POD_UID do not name this worker's pod"
                )
            if self._access is None:
                self._access = await self._find_access()
        except (PodFailure, OSError) as failure:
            text = (
                "it is an image, which a worker on Kubernetes runs as a pod, but"
                f" {failure}. See 'images' in the chart's values."
            )
            raise not_started(server, "CONTAINER_ENGINE_MISSING", text) from None
        owner = Owner(name, uid, self._run)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep(owner))
        return owner

    async def _find_access(self) -> ApiAccess:
        namespace = self._environ.get("LEASEWAY_POD_NAMESPACE")
        return await asyncio.to_thread(find_access, namespace)  # loading the library takes a while

    async def _find_after(self, error: Exception) -> None:
        """Find the access again after a failure of TLS: the authority may have been replaced."""
        if isinstance(error, aiohttp.ClientSSLError):
            with contextlib.suppress(PodFailure, OSError):  # files that are being replaced
                self._access = await self._find_access()

    async def create(self, plural: str, manifest: Manifest) -> AsyncIterator[str]:
        """Create an object; yield why that did not succeed yet, after each attempt.

        Raises:
            PodFailure: It was refused.
        """
        may_exist = False
        while True:
            try:
                await self._request("POST", plural, manifest)
            except ExistsError:
                if not may_exist:
                    raise
                return
            except ApiBusyError as busy:
                may_exist = True  # an attempt without an answer may have succeeded
                yield str(busy)
                await asyncio.sleep(_RETRY_INTERVAL)
            else:
                return

    async def until_running(self, name: str) -> AsyncIterator[str]:
        """Yield why a pod does not run yet, at each change; return once it runs.

        Raises:
            PodFailure: It will never run.
        """
        previous = ""
        while True:
            try:
                async for pod in self._watch(name):
                    status = pod.get("status") or {}
                    if is_running(status):
                        return
                    ended = ending(pod)
                    if ended is not None:
                        raise PodFailure(f"the pod {name} does not run: its server {ended.text}")
                    reason, message = waiting_reason(status)
                    if reason in _FATAL:
                        raise PodFailure(f"the pod {name} does not run: {reason} {message}")
                    cause = f"{reason} {message}".strip() or scheduling(pod)
                    if cause != previous:
                        previous = cause
                        yield cause
            except ApiBusyError as busy:
                previous = str(busy)
                yield previous
            await asyncio.sleep(_WATCH_INTERVAL)  # the API ends a watch if its cache is behind

    async def how_ended(self, name: str) -> Ending:
        """Return how a pod's server has ended, as far as the API says it within a second."""
        try:
            async with asyncio.timeout(_ENDING):
                async for pod in self._watch(name):
                    ended = ending(pod)
                    if ended is not None:
                        return ended
        except (PodFailure, TimeoutError):
            pass
        return Ending("closed its end of the connection")

    async def attach(self, name: str) -> aiohttp.ClientWebSocketResponse:
        """Return a websocket to the standard input and output of a pod's server.

        Raises:
            PodFailure: The attach failed.
        """
        access = self._require_access()
        query = {"container": CONTAINER, "stdin": "true", "stdout": "true", "stderr": "true"}
        try:
            return await self._http.ws_connect(
                f"{self._path('pods')}/{name}/attach",
                params=query,
                protocols=(_SUBPROTOCOL,),
                headers=access.headers(),
                ssl=access.tls,
                max_msg_size=0,
                heartbeat=60,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await self._find_after(error)
            cause = getattr(error, "message", "") or str(error) or type(error).__name__
            status = getattr(error, "status", 0)
            hint = _GRANT_OR_MEET if status == 403 else ""  # its message stays unread
            answered = f" ({status}{hint})" if status else ""
            raise PodFailure(f"the pod {name} can't be attached to{answered}: {cause}") from None

    def remove(self, name: str) -> asyncio.Task[None]:
        """Delete an instance's pod and secret in the background, with retries for 5 minutes."""
        removal = asyncio.get_running_loop().create_task(self._remove(name))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        return removal

    async def close(self, timeout: float) -> None:
        """Wait for pending removals. Remaining pods are deleted together with the worker's pod."""
        tasks = [*self._removals, *([self._sweeping] if self._sweeping is not None else [])]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()

    async def _remove(self, name: str) -> None:
        grace = {"gracePeriodSeconds": str(_GRACE)}
        await self._delete({f"pods/{name}": grace, f"secrets/{name}": {}}, f"The pod {name}")

    async def _sweep(self, owner: Owner) -> None:
        """Delete the objects of earlier processes in this worker's pod."""
        query = {"labelSelector": owner.earlier}
        await self._delete({"pods": query, "secrets": query}, "What an earlier worker process left")

    async def _delete(self, paths: Mapping[str, Mapping[str, str]], what: str) -> None:
        """Delete objects, with retries for 5 minutes. `paths` have the query of each request."""
        for attempt in range(_REMOVE_ATTEMPTS):
            try:
                for path, query in paths.items():
                    await self._request("DELETE", path, query=query, known=(404,))
                return
            except PodFailure as failure:
                if attempt in (0, _REMOVE_ATTEMPTS - 1):
                    outcome = "is retried" if attempt == 0 else "ends with the worker's own pod"
                    _logger.warning("%s can't be removed: %s. It %s.", what, failure, outcome)
            await asyncio.sleep(_REMOVE_INTERVAL)

    async def _watch(self, name: str) -> AsyncIterator[Manifest]:
        """Yield a pod as it is and after each change, until the API ends the watch."""
        access = self._require_access()
        query = {"watch": "true", "fieldSelector": f"metadata.name={name}"}
        try:
            async with self._http.get(
                self._path("pods"),
                params=query,
                headers=access.headers(),
                ssl=access.tls,
                timeout=_WATCH_TIMEOUT,
                read_bufsize=_MAX_CHANGE,
            ) as response:
                if response.status >= 400:
                    raise await _refusal("watch pods", response)
                async for line in response.content:
                    change = json.loads(line)
                    if change.get("type") == "DELETED":
                        raise PodFailure("its pod was deleted")
                    if change.get("type") != "ERROR":
                        yield change["object"]
        except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            await self._find_after(error)
            cause = str(error) or type(error).__name__
            raise ApiBusyError(f"its pod can't be watched: {cause}") from None

    async def _request(
        self,
        method: str,
        path: str,
        body: Manifest | None = None,
        *,
        query: Mapping[str, str] | None = None,
        known: Collection[int] = (),
    ) -> None:
        """Send a request. Statuses that are `known` are no failure."""
        access = self._require_access()
        try:
            async with self._http.request(
                method,
                self._path(path),
                json=body,
                params=query,
                headers=access.headers(),
                ssl=access.tls,
                timeout=_TIMEOUT,
            ) as response:
                if response.status >= 400 and response.status not in known:
                    raise await _refusal(f"{method} {path}", response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await self._find_after(error)
            cause = str(error) or type(error).__name__
            raise ApiBusyError(f"the Kubernetes API can't be reached: {cause}") from None

    def _require_access(self) -> ApiAccess:
        assert self._access is not None, "Call `owner` first."
        return self._access

    def _path(self, plural: str) -> str:
        access = self._require_access()
        return f"{access.url}/api/v1/namespaces/{access.namespace}/{plural}"


def runs_pods(environ: Mapping[str, str]) -> bool:
    """Return whether a worker runs images as pods: it is configured to, or runs on Kubernetes."""
    named = environ.get("LEASEWAY_CONTAINER_ENGINE")
    return named == "kubernetes" if named else "KUBERNETES_SERVICE_HOST" in environ


def find_access(namespace: str | None) -> ApiAccess:
    """Return the access to the API that this process's environment configures.

    Raises:
        PodFailure: It configures none.
    """
    try:
        from lightkube.config.client_adapter import verify_cluster
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.core.exceptions import ConfigError
    except ImportError:
        raise PodFailure("it needs `pip install 'leaseway[kubernetes]'`") from None
    try:
        config = KubeConfig.from_env().get()
        if config is None or config.user is None:
            raise PodFailure("no Kubernetes API is configured here")
        user = config.user
        return ApiAccess(
            url=config.cluster.server.rstrip("/"),
            tls=verify_cluster(config.cluster, user, config.abs_file),
            token=Path(user.token_file) if user.token_file is not None else user.token or "",
            namespace=namespace or config.namespace,
        )
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        raise PodFailure(f"no Kubernetes API is configured here: {error}") from None


def is_running(status: Mapping[str, Any]) -> bool:
    """Return whether the server's container runs."""
    return "running" in _states(status, "containerStatuses").get(CONTAINER, {})


def ending(pod: Mapping[str, Any]) -> Ending | None:
    """Return how a pod's server has ended, or None if the pod may still run."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():  # a drain, a pre-emption, a lost node
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return Ending(f"lost its pod: {_reason(condition)}")
    if status.get("reason") and status.get("phase") != "Pending":  # by the node, such as Evicted
        return Ending(f"lost its pod: {_reason(status)}")
    terminated = _states(status, "containerStatuses").get(CONTAINER, {}).get("terminated")
    if terminated:
        return _exit(terminated)
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return Ending("lost its pod: it was deleted")
    if status.get("phase") not in ("Failed", "Succeeded"):
        return None
    for name, state in _states(status, "initContainerStatuses").items():
        found = state.get("terminated") or {}
        if found.get("exitCode"):
            return Ending(f"did not start: its init container {name} {_exit(found).text}")
    return Ending("ended with its pod")


def _exit(terminated: Mapping[str, Any]) -> Ending:
    code = int(terminated.get("exitCode") or 0)
    text = describe_status(code)
    if terminated.get("reason") == "OOMKilled":
        text += ": it used up its memory (limits.memory), and the kernel killed it (OOMKilled)"
    elif terminated.get("reason") not in (None, "", "Completed", "Error"):
        text += f": {_reason(terminated)}"
    return Ending(text, code)


def _states(status: Mapping[str, Any], field: str) -> dict[str, Mapping[str, Any]]:
    """Return the states of a pod's containers by name."""
    return {
        container["name"]: container.get("state") or {} for container in status.get(field) or ()
    }


def _reason(found: Mapping[str, Any]) -> str:
    text = f"{found.get('reason') or ''} {(found.get('message') or '')[:500]}"
    return text.strip().rstrip(".")


def waiting_reason(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return why a pod does not run: a reason and a message, or two empty texts."""
    for name, state in _states(status, "initContainerStatuses").items():
        found = state.get("waiting") or {}
        if found.get("reason") not in (None, "", "PodInitializing"):
            return found["reason"], f"(init container {name}) {(found.get('message') or '')[:500]}"
    for container in status.get("containerStatuses") or ():
        found = (container.get("state") or {}).get("waiting")
        if container["name"] == CONTAINER and found:
            return found.get("reason") or "", (found.get("message") or "")[:500]
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition.get("reason") or "", (condition.get("message") or "")[:500]
    return "", ""


def scheduling(pod: Mapping[str, Any]) -> str:
    """Describe the progress of a pod without a waiting reason."""
    node = (pod.get("spec") or {}).get("nodeName")
    return (
        f"the node {node} has not started it yet" if node else "it is not scheduled to a node yet"
    )


def refusal_hint(status: int, message: str) -> str:
    """Return what to do about a refusal: a missing right and an admission rule are both 403."""
    if status != 403:
        return ""
    if _NO_RIGHT.match(message):
        return _GRANT
    return f": {_MEET}"


async def _refusal(action: str, response: aiohttp.ClientResponse) -> PodFailure:
    text = await response.text()
    kind = ApiBusyError if response.status in _BUSY else PodFailure
    with contextlib.suppress(ValueError, KeyError, TypeError):
        said = json.loads(text)
        text = str(said["message"])
        if said.get("reason") == "AlreadyExists":  # 409 is also a quota that changes meanwhile
            kind = ExistsError
    status = f"{response.status}{refusal_hint(response.status, text)}"
    return kind(f"the Kubernetes API refused {action} ({status}): {text[:500].rstrip('.')}")
