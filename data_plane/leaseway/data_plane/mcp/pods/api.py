"""What a worker asks of the Kubernetes API for servers that are images.

How the API is reached is read by the client library, which is loaded when the first such server
starts; what is asked goes over the worker's own HTTP client, which can attach, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from leaseway.data_plane.mcp.pods.manifest import CONTAINER, Manifest, Owner
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)
_PROTOCOL: Final = "v4.channel.k8s.io"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
_UNBOUNDED: Final = aiohttp.ClientTimeout(total=None, sock_connect=10)
_GRACE: Final = 2
_REMOVAL_TRIES: Final = 60
_BETWEEN_TRIES: Final = 5.0
_BETWEEN_WATCHES: Final = 0.5
_FATAL: Final = frozenset(
    {"CreateContainerConfigError", "ErrImageNeverPull", "InvalidImageName", "RunContainerError"}
)
"""Why a container waits where waiting is no use."""


class PodFailure(Exception):
    """The API did not do what it was asked for; the text is a sentence."""


@dataclass(frozen=True)
class Access:
    """How the API is reached.

    Attributes:
        url: Its address.
        tls: How it is verified, and who the worker is where a certificate says so.
        token: Its bearer token, or the file that it is in; files change.
        namespace: Where the pods go.
    """

    url: str
    tls: ssl.SSLContext
    token: str | Path
    namespace: str

    def headers(self) -> dict[str, str]:
        token = self.token.read_text().strip() if isinstance(self.token, Path) else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


class Pods:
    """A worker's pods.

    Args:
        environ: The worker's environment; the downward API says there which pod it is.
        http: The worker's HTTP client.
    """

    def __init__(self, environ: Mapping[str, str], http: aiohttp.ClientSession) -> None:
        self._environ = environ
        self._http = http
        self._run = secrets.token_hex(8)
        self._access: Access | None = None
        self._swept: asyncio.Task[None] | None = None
        self._removals: set[asyncio.Task[None]] = set()

    async def owner(self, server: str) -> Owner:
        """Return whose pods these are, and learn how the API is reached.

        Raises:
            Fault: SERVER_NOT_READY with `problem` CONTAINER_ENGINE_MISSING.
        """
        name, uid = (self._environ.get(f"LEASEWAY_POD_{each}", "") for each in ("NAME", "UID"))
        try:
            if not name or not uid:
                raise PodFailure(
                    "LEASEWAY_POD_NAME and LEASEWAY_POD_UID do not say which pod this worker is"
                )
            if self._access is None:  # loading the library takes a while
                namespace = self._environ.get("LEASEWAY_POD_NAMESPACE")
                self._access = await asyncio.to_thread(find_access, namespace)
        except (PodFailure, OSError) as failure:
            raise Fault(
                Reason.SERVER_NOT_READY,
                f"The server {server} could not be started: it is an image, which a worker on"
                f" Kubernetes runs as a pod, but {failure}. See 'images' in the chart's values.",
                metadata={"server": server, "problem": "CONTAINER_ENGINE_MISSING"},
            ) from None
        owner = Owner(name, uid, self._run)
        if self._swept is None:
            self._swept = asyncio.get_running_loop().create_task(self._sweep(owner))
        return owner

    async def create(self, plural: str, manifest: Manifest) -> None:
        """Make an object.

        Raises:
            PodFailure: It was not made.
        """
        await self._ask("POST", plural, manifest)

    async def until_running(self, name: str) -> AsyncIterator[str]:
        """Yield why a pod does not run yet, whenever that changes; end once it runs.

        Raises:
            PodFailure: It will not run.
        """
        said = ""
        query = {"watch": "true", "fieldSelector": f"metadata.name={name}"}
        while True:
            async for pod in self._watch(query):
                status = pod.get("status") or {}
                if is_running(status):
                    return
                reason, message = waiting(status)
                if status.get("phase") in ("Failed", "Succeeded") or reason in _FATAL:
                    raise PodFailure(f"the pod {name} does not run: {reason or 'ended'} {message}")
                why = f"{reason} {message}".strip() or placed(pod)
                if why != said:
                    said = why
                    yield why
            await asyncio.sleep(_BETWEEN_WATCHES)  # the API ends a watch when its cache is behind

    async def attach(self, name: str) -> aiohttp.ClientWebSocketResponse:
        """Return a websocket to the standard input and output of a pod's server.

        Raises:
            PodFailure: There is no way to it.
        """
        access = self._known()
        query = {"container": CONTAINER, "stdin": "true", "stdout": "true", "stderr": "true"}
        try:
            return await self._http.ws_connect(
                f"{self._path('pods')}/{name}/attach",
                params=query,
                protocols=(_PROTOCOL,),
                headers=access.headers(),
                ssl=access.tls,
                max_msg_size=0,
                heartbeat=60,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = getattr(error, "message", "") or str(error) or type(error).__name__
            status = getattr(error, "status", 0)
            answered = f" ({status}{_hint(status)})" if status else ""
            raise PodFailure(f"the pod {name} can't be attached to{answered}: {why}") from None

    def remove(self, name: str) -> asyncio.Task[None]:
        """Remove an instance's pod and secret, however long the API is away meanwhile."""
        removal = asyncio.get_running_loop().create_task(self._remove(name))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        return removal

    async def close(self, patience: float) -> None:
        """Wait for removals that are under way; the worker's pod takes with it what stays."""
        tasks = [*self._removals, *([self._swept] if self._swept is not None else [])]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience)
            for task in late:
                task.cancel()

    async def _remove(self, name: str) -> None:
        for attempt in range(_REMOVAL_TRIES):
            try:
                for plural in ("pods", "secrets"):
                    grace = {"gracePeriodSeconds": str(_GRACE)} if plural == "pods" else {}
                    await self._ask("DELETE", f"{plural}/{name}", query=grace, but=(404,))
                return
            except PodFailure as failure:
                if attempt in (0, _REMOVAL_TRIES - 1):
                    how = "is tried again" if attempt == 0 else "goes with the worker's own pod"
                    _logger.warning("The pod %s can't be removed: %s. It %s.", name, failure, how)
            await asyncio.sleep(_BETWEEN_TRIES)

    async def _sweep(self, owner: Owner) -> None:
        """Remove what an earlier process of this worker's pod left behind."""
        try:
            for plural in ("pods", "secrets"):
                await self._ask("DELETE", plural, query={"labelSelector": owner.earlier})
        except PodFailure as failure:
            _logger.warning("Pods that were left behind can't be removed: %s.", failure)

    async def _watch(self, query: Mapping[str, str]) -> AsyncIterator[Manifest]:
        access = self._known()
        try:
            async with self._http.get(
                self._path("pods"),
                params=query,
                headers=access.headers(),
                ssl=access.tls,
                timeout=_UNBOUNDED,
            ) as answer:
                if answer.status >= 400:
                    raise PodFailure(await _refusal("watch pods", answer))
                async for line in answer.content:
                    change = json.loads(line)
                    if change.get("type") == "DELETED":
                        raise PodFailure("its pod was deleted")
                    if change.get("type") != "ERROR":
                        yield change["object"]
        except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            raise PodFailure(f"its pod can't be watched: {error}") from None

    async def _ask(
        self,
        method: str,
        path: str,
        body: Manifest | None = None,
        *,
        query: Mapping[str, str] | None = None,
        but: tuple[int, ...] = (),
    ) -> None:
        access = self._known()
        try:
            async with self._http.request(
                method,
                self._path(path),
                json=body,
                params=query,
                headers=access.headers(),
                ssl=access.tls,
                timeout=_TIMEOUT,
            ) as answer:
                if answer.status >= 400 and answer.status not in but:
                    raise PodFailure(await _refusal(f"{method} {path}", answer))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise PodFailure(f"the Kubernetes API can't be reached: {why}") from None

    def _known(self) -> Access:
        assert self._access is not None, "`owner` is asked first."
        return self._access

    def _path(self, plural: str) -> str:
        access = self._known()
        return f"{access.url}/api/v1/namespaces/{access.namespace}/{plural}"


def runs_pods(environ: Mapping[str, str]) -> bool:
    """Return whether a worker runs images as pods: it is told to, or it is on Kubernetes itself."""
    named = environ.get("LEASEWAY_CONTAINER_ENGINE")
    return named == "kubernetes" if named else "KUBERNETES_SERVICE_HOST" in environ


def find_access(namespace: str | None) -> Access:
    """Return how this process's surroundings say that the API is reached.

    Raises:
        PodFailure: They do not say it.
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
            raise PodFailure("no Kubernetes API is known here")
        user = config.user
        return Access(
            url=config.cluster.server.rstrip("/"),
            tls=verify_cluster(config.cluster, user, config.abs_file),
            token=Path(user.token_file) if user.token_file is not None else user.token or "",
            namespace=namespace or config.namespace,
        )
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        raise PodFailure(f"no Kubernetes API is known here: {error}") from None


def is_running(status: Mapping[str, Any]) -> bool:
    """Return whether a pod's server runs."""
    states = [each for each in status.get("containerStatuses") or () if each["name"] == CONTAINER]
    return bool(states) and "running" in (states[0].get("state") or {})


def waiting(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return the reason and the message of why a pod does not run, as far as they are known."""
    for each in status.get("containerStatuses") or ():
        state = each.get("state") or {}
        found = state.get("waiting") or state.get("terminated")
        if each["name"] == CONTAINER and found:
            return found.get("reason") or "", (found.get("message") or "")[:500]
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition.get("reason") or "", (condition.get("message") or "")[:500]
    return "", ""


def placed(pod: Mapping[str, Any]) -> str:
    """Return how far a pod came that says nothing about itself."""
    node = (pod.get("spec") or {}).get("nodeName")
    return f"the node {node} has not started it yet" if node else "no node has taken it yet"


async def _refusal(what: str, answer: aiohttp.ClientResponse) -> str:
    text = await answer.text()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["message"]
    status = f"{answer.status}{_hint(answer.status)}"
    return f"the Kubernetes API refused {what} ({status}): {text[:500].rstrip('.')}"


def _hint(status: int) -> str:
    return ": give its service account that right" if status == 403 else ""
