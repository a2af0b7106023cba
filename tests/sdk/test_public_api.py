"""The public API of the SDK: names, signatures, and the modules that an import loads."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from typing import Any

import pytest

import leaseway.sdk as sdk

PUBLIC = """
Approval Artifact ArtifactLost AsyncArtifact AsyncClient AsyncListWatch AsyncResourceUpdates
AsyncSession AsyncToolStream AsyncToolWatch AuthorizationFailed CallOptions Cancelled Capacity
Client Completion ConfirmationRequired ControlPlaneUnavailable DeadlineExceeded Draining FateUnknown
IncompatibleVersion InputRequired InstanceInfo InstanceLog InternalError InvalidArguments
InvalidRequest Lease LeaseError LeaseExpired LeaseInfo LeaseLost LeaseReleased LeaseRevoked
LeasewayError LimitInfo ListWatch LogMessage LoginRequired Media ModelContent NotApplied NotLeader
NotLeasable Overloaded PermissionDenied ProblemInfo Progress ProjectionProblem Prompt PromptArgument
PromptList PromptResult RateLimited Resource ResourceList ResourceResult ResourceTemplate
ResourceTemplateList ResourceUpdates ResultTooLarge ResultTypeError ServerError ServerInfo
ServerLost ServerNotReady ServerState Session SessionRequired Status StoreUnavailable StreamOptions
Syncing Tool ToolDiffers ToolError ToolList ToolNotFound ToolResult ToolStream ToolWatch
Unauthenticated UserRequired Violation WorkerInfo WorkerLost project_tools
"""


def test_the_public_names_are_these() -> None:
    assert sdk.__all__ == PUBLIC.split()
    assert all(hasattr(sdk, name) for name in sdk.__all__)


def test_everything_public_is_documented() -> None:
    for name in sdk.__all__:
        value = getattr(sdk, name)
        assert inspect.getdoc(value), name
        for member, attribute in vars(value).items():
            if not member.startswith("_") and callable(attribute):
                assert inspect.getdoc(attribute), f"{name}.{member}"


def _public(kind: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


def _plain(signature: inspect.Signature) -> str:
    return re.sub(r"\bAsync(?=[A-Z])", "", str(signature))


@pytest.mark.parametrize(
    ("asynchronous", "synchronous"),
    [(sdk.AsyncClient, sdk.Client), (sdk.AsyncSession, sdk.Session)],
)
def test_both_clients_have_the_same_surface(asynchronous: type, synchronous: type) -> None:
    theirs, ours = _public(asynchronous), _public(synchronous)
    assert theirs.keys() == ours.keys()
    for name, member in theirs.items():
        assert _plain(inspect.signature(member)) == _plain(inspect.signature(ours[name])), name
    assert hasattr(synchronous, "__enter__") == hasattr(asynchronous, "__aenter__")


def test_both_clients_are_made_the_same_way() -> None:
    assert inspect.signature(sdk.AsyncClient) == inspect.signature(sdk.Client)


IMPORTS = """
import sys
import grpc, grpc.aio
before = set(sys.modules)
import leaseway.sdk
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - sys.stdlib_module_names))
print(*sorted(name for name in sys.modules if name.startswith(("leaseway.", "opentelemetry."))))
"""


def test_a_programs_setting_of_grpc_fork_support_is_kept() -> None:
    code = "import leaseway.sdk, os; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    for chosen, expected in ((None, "0"), ("1", "1")):
        environment = {k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
        if chosen is not None:
            environment["GRPC_ENABLE_FORK_SUPPORT"] = chosen
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=environment,
        )
        assert done.stdout.strip() == expected


def test_importing_the_sdk_loads_little() -> None:
    # grpc is imported before: it imports its own optional dependencies if they are installed.
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=60
    )
    packages, modules = done.stdout.splitlines()
    allowed = {"google", "grpc", "leaseway", "opentelemetry", "typing_extensions"}
    assert set(packages.split()) <= allowed
    for forbidden in ("control_plane", "data_plane", "cli"):
        assert f"leaseway.{forbidden}" not in modules
    assert "opentelemetry.sdk" not in modules
    assert "leaseway.sdk.client.client" in modules
