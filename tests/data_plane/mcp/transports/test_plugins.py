"""Transports that other packages register."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.protocol.transport import ServerView
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value
from leaseway.wire.errors import Reason

Bench = Any
pytestmark = pytest.mark.usefixtures("carriers")


def made() -> list[Any]:
    made: list[Any] = importlib.import_module("memory_carrier").made
    return made


@pytest.fixture(autouse=True)
def forget_transports(carriers: Path) -> None:
    """Forget the transports of earlier tests."""
    made().clear()


def spec(transport: str, url: str = "", **more: Any) -> ServerSpec:
    return server_spec(VariantKey("own", "acme"), transport, url=url, **more)


async def test_a_factory_learns_whom_it_serves_and_what_references_stand_for(bench: Bench) -> None:
    given = {"env": {"A": Value("env", "TOKEN")}, "headers": {"B": Value("literal", "c")}}
    instance = await bench.start(
        spec("memory", "memory://${HOST}", command="coo", args=("a",), **given),
        {"TOKEN": "t0ken", "HOST": "here"},
    )
    view, resolved = made()[0]
    assert view == ServerView(
        server="own", tenant="acme", transport="memory", shared=False, startup_timeout=30.0
    )
    assert isinstance(resolved, ResolvedValues)
    assert (resolved.command, resolved.args, resolved.url) == ("coo", ("a",), "memory://here")
    assert (resolved.env, resolved.headers) == ({"A": "t0ken"}, {"B": "c"})
    assert instance.pid is None
    assert await bench.text(instance, "echo", {"text": "hi"}) == "hi"


@pytest.mark.parametrize(
    ("transport", "words"),
    [
        ("absent", ("the entry point absent = no_such_module:factory of carriers 1.0 (group "
         "leaseway.transports) created no transport: ModuleNotFoundError: No module named "
         "'no_such_module'.")),
        ("explodes", "created no transport: ValueError: no tower with {'A': '[hidden]'}."),
        ("nothing", ("created no transport: it returned int, which is neither a Transport nor a "
         "PullTransport.")),
    ],
)  # fmt: skip
async def test_a_broken_entry_point_fails_its_server_with_its_name_and_error(
    bench: Bench, transport: str, words: str
) -> None:
    secret = {"A": Value("secret", "PASSWORD")}
    fault = await bench.fails(
        spec(transport, "tower", env=secret), environment={"PASSWORD": "swordfish"}
    )
    assert fault.reason is Reason.SERVER_NOT_READY
    assert fault.metadata["problem"] == "START_FAILED"
    assert fault.metadata["entry_point"] == transport
    assert fault.message.startswith("The server own could not be started: the entry point ")
    assert words in fault.message
    assert "swordfish" not in fault.message


async def test_an_unregistered_name_fails_its_server(bench: Bench) -> None:
    fault = await bench.fails(spec("pigeon"))
    assert fault.metadata["problem"] == "TRANSPORT_NOT_AVAILABLE"
    assert "install the package that registers it" in fault.message


async def test_a_name_registered_by_two_packages_fails_its_server(
    bench: Bench, carriers: Path
) -> None:
    other = carriers / "others-2.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 2.0\n")
    (other / "entry_points.txt").write_text("[leaseway.transports]\nmemory = others:make\n")
    fault = await bench.fails(spec("memory"))
    assert fault.metadata["problem"] == "START_FAILED"
    assert "more than one package registers it: carriers 1.0 and others 2.0" in fault.message


async def test_the_fault_of_a_failed_connect_hides_secrets(
    bench: Bench,
) -> None:
    secret = {"A": Value("secret", "PASSWORD")}
    fault = await bench.fails(
        spec("queues", "queues://refuses", env=secret), environment={"PASSWORD": "swordfish"}
    )
    assert fault.metadata["problem"] == "START_FAILED"
    assert fault.message == (
        "The connection to the server own over queues could not be opened: the line is dead; the "
        "password is [hidden]."
    )
    assert made()[0].disconnected == 1


async def test_a_transport_that_hangs_fails_at_the_startup_timeout(bench: Bench) -> None:
    fault = await bench.fails(spec("queues", "queues://hangs", startup_timeout=0.2))
    assert fault.metadata["problem"] == "START_TIMEOUT"
    assert made()[0].disconnected == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hang up", "was closed by the server: it hung up."),
        ("break", "broke: the send broke."),
        ("wrong type", "broke: its receive returned str instead of bytes."),
    ],
)
async def test_an_exception_of_a_pull_transport_ends_the_connection(
    bench: Bench, text: str, words: str
) -> None:
    instance = await bench.start(spec("queues"))
    fault = await bench.call_fault(instance, "echo", {"text": text})
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")
    assert fault.message == f"The connection to the server own over queues {words}"
    closed, _ = await bench.closed.get()
    assert closed is instance
    assert made()[0].disconnected == 1


async def test_an_exception_of_disconnect_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await bench.start(spec("queues", "queues://unclean"))
    await instance.close()
    assert instance.state == "closed"
    assert "Disconnecting from the server own over queues failed: it would not close." in (
        caplog.text
    )
