"""One real Kubernetes API for all tests here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from tests.conftest import absent
from tests.kubernetes.cluster import TOOLS, Cluster, missing
from tests.ports import free_port


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a running API with Leaseway's definitions installed."""
    why = missing()
    if why is not None:
        absent("k8s", why)
    made = Cluster(tmp_path_factory.mktemp("kubernetes"), (free_port(), free_port(), free_port()))
    try:
        made.start()
        made.install_crds()
        yield made
    finally:
        made.stop()


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """Return a new namespace."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    cluster.request("POST", "/api/v1/namespaces", body)
    return name


@pytest.fixture
def helm() -> str:
    """Return the path of helm."""
    own = TOOLS / "helm"
    program = str(own) if own.exists() else shutil.which("helm")
    if program is None:
        absent("k8s", "there is no helm; run `make k8s-api`.")
    return str(program)
