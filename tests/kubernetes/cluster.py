"""A real Kubernetes API for tests: etcd and kube-apiserver, without a kubelet or controllers.

`make k8s-api` builds it into `.build/kubernetes/bin`; etcd is the system's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from tests.conftest import BOUND, ROOT

TOOLS: Final = Path(os.environ.get("LEASEWAY_KUBERNETES") or ROOT / ".build" / "kubernetes" / "bin")
CRDS: Final = ROOT / "deploy" / "chart" / "leaseway" / "crds"
CHART: Final = ROOT / "deploy" / "chart" / "leaseway"
ADMIN: Final = "admin-token"
USERS: Final = ("plane", "worker", "nobody")
"""Users without rights; the token of a user is its name and `-token`."""


def missing() -> str | None:
    """Return why the API cannot run on this machine, or None."""
    if not (TOOLS / "kube-apiserver").exists():
        return f"there is no kube-apiserver in {TOOLS}; run `make k8s-api`"
    if shutil.which("etcd") is None:
        return "there is no etcd; install etcd-server"
    return None


class ApiRefused(Exception):
    """The API responded with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass
class Cluster:
    """The two processes of the API.

    Args:
        folder: The folder of their files.
        ports: Three free ports.
    """

    folder: Path
    ports: tuple[int, int, int]

    def __post_init__(self) -> None:
        self._etcd: subprocess.Popen[bytes] | None = None
        self._api: subprocess.Popen[bytes] | None = None
        self.url = f"https://127.0.0.1:{self.ports[2]}"
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self.folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.folder / "sa.key"), "2048"],
            check=True,
            capture_output=True,
        )
        lines = [f'{ADMIN},admin,1,"system:masters"']
        lines += [f"{user}-token,{user},{number}" for number, user in enumerate(USERS, 2)]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start both and wait until the API is ready."""
        client, peer = (f"http://127.0.0.1:{port}" for port in self.ports[:2])
        self._etcd = self._spawn(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        self.start_api()

    def start_api(self) -> None:
        """Start only the API server, and wait until it is ready."""
        key = self.folder / "sa.key"
        self._api = self._spawn(
            str(TOOLS / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self.ports[0]}",
            f"--cert-dir={self.folder / 'certs'}",
            f"--secure-port={self.ports[2]}",
            "--bind-address=127.0.0.1",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
        )
        until = time.monotonic() + BOUND
        while True:
            try:
                self.request("GET", "/readyz", text=True)
                self.request("GET", "/api/v1/namespaces/default")
            except (OSError, ApiRefused):
                if self._api.poll() is not None or time.monotonic() > until:
                    log = (self.folder / "kube-apiserver.log").read_text()[-3000:]
                    raise RuntimeError(f"The API did not become ready: {log}") from None
                time.sleep(0.1)
            else:
                return

    def stop_api(self) -> None:
        """Kill the API server; its data stays in etcd."""
        _end(self._api)
        self._api = None

    def stop(self) -> None:
        """Stop both."""
        _end(self._api)
        _end(self._etcd)

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{Path(program).name}.log").open("ab")
        with log:
            return subprocess.Popen([program, *arguments], stdout=log, stderr=log)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str = ADMIN,
        kind: str = "application/json",
        text: bool = False,
    ) -> Any:
        """Send a request as an administrator and return the response.

        Raises:
            ApiRefused: The API responded with an error.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        asked = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(asked, context=self._tls, timeout=30) as answer:
                found = answer.read()
        except urllib.error.HTTPError as error:
            message = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError):
                message = json.loads(message)["message"]
            raise ApiRefused(error.code, message) from None
        return found.decode() if text else json.loads(found)

    def install_crds(self) -> None:
        """Install the definitions and wait until their resources can be listed."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for file in sorted(CRDS.glob("*.yaml")):
            self.request("POST", path, yaml.safe_load(file.read_text()))
        until = time.monotonic() + BOUND
        for plural in ("mcpservers", "mcptenants"):
            while True:
                try:
                    self.request("GET", resources(plural))
                    break
                except ApiRefused:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.05)

    def apply(self, kind: str, name: str, spec: Any, *, namespace: str = "default") -> Any:
        """Create a resource, or replace its specification."""
        body = {
            "apiVersion": "leaseway.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        path = resources(f"{kind.lower()}s", namespace)
        try:
            return self.request("POST", path, body)
        except ApiRefused as refused:
            if refused.code != 409:
                raise
        found = self.request("GET", f"{path}/{name}")
        body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        return self.request("PUT", f"{path}/{name}", body)

    def grant(self, path: str, user: str, rules: list[tuple[str, list[str], list[str]]]) -> None:
        """Grant a user rights in a namespace: (API group, resources, verbs)."""
        listed = [
            {"apiGroups": [group], "resources": resources, "verbs": verbs}
            for group, resources, verbs in rules
        ]
        group = "rbac.authorization.k8s.io"
        metadata = {"name": user}
        self.request("POST", f"{path}/roles", {"metadata": metadata, "rules": listed})
        binding = {
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        self.request("POST", f"{path}/rolebindings", binding)

    def kubeconfig(self, user: str = "admin", namespace: str = "default") -> Path:
        """Return a KUBECONFIG file for this API."""
        path = self.folder / f"{user}-{namespace}.kubeconfig"
        if path.exists():  # other processes may be reading it
            return path
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        context = {"cluster": "test", "user": user, "namespace": namespace}
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "contexts": [{"name": "test", "context": context}],
            "users": [{"name": user, "user": {"token": f"{user}-token"}}],
        }
        path.write_text(yaml.safe_dump(found))
        return path


def resources(plural: str, namespace: str = "default") -> str:
    """Return the path of a namespace's custom resources."""
    return f"/apis/leaseway.dev/v1alpha1/namespaces/{namespace}/{plural}"


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
