"""Tokens of a workload that its platform vouches for: `auth: {workload_identity: …}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiohttp import web
from tests.data_plane.mcp.conftest import Bench, bench
from tests.data_plane.oauth.guarded import Guarded
from tests.data_plane.oauth.whoami import WHOAMI, call, started

from leaseway.data_plane.kinds.values import resolve
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.spec.auth import Auth
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value
from leaseway.wire.errors import Fault, Reason

__all__ = ["bench"]
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@pytest.fixture
def statement(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("planted-workload-1-Hq8sT2\n")
    return path


def spec_of(guarded: Guarded, statement: Path, client: str = "") -> ServerSpec:
    values = {"assertion": Value("file", str(statement))}
    if client:
        values["client_id"] = Value("literal", client)
    return server_spec(
        VariantKey("remote"),
        "http_api",
        url=f"{guarded.base}/api",
        http_tools=(WHOAMI,),
        auth=Auth("workload_identity", values=values),
        truely_stateless=True,
    )


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("client", ["", "me"])
async def test_the_statement_of_the_platform_is_what_a_token_is_granted_for(
    bench: Bench, guarded: Guarded, statement: Path, client: str
) -> None:
    instance = await started(bench, spec_of(guarded, statement, client), {}, Tokens())
    assert (await call(instance)).fault is None
    assert guarded.granted == [
        {
            "grant_type": JWT_BEARER,
            "assertion": "planted-workload-1-Hq8sT2",
            "scope": "tools",
            "resource": f"{guarded.base}/api",
            **({"client_id": client} if client else {}),
        }
    ]
    assert guarded.clients == [None]
    await instance.close()


async def test_a_replaced_statement_is_read_for_the_next_token_and_restarts_nothing(
    bench: Bench, guarded: Guarded, statement: Path
) -> None:
    spec, clock = spec_of(guarded, statement), Clock()
    before = resolve(spec, {})
    instance = await started(bench, spec, {}, Tokens(now=clock))
    assert (await call(instance)).fault is None
    statement.write_text("planted-workload-2-Hq8sT2")
    assert not resolve(spec, {}).differs(before)
    clock.now += 4_000
    assert (await call(instance)).fault is None
    assert [form["assertion"] for form in guarded.granted] == [
        "planted-workload-1-Hq8sT2",
        "planted-workload-2-Hq8sT2",
    ]
    await instance.close()


async def test_a_statement_that_is_missing_keeps_the_server_from_starting(
    bench: Bench, guarded: Guarded, statement: Path
) -> None:
    statement.unlink()
    spec = spec_of(guarded, statement)
    with pytest.raises(Fault, match=r"auth\.assertion refers to the file") as caught:
        await started(bench, spec, {}, Tokens())
    assert caught.value.metadata["problem"] == "MISSING_REFERENCE"
    assert not guarded.granted


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "can't be read"),
        ("", "no token"),
        ("two words", "no token"),
        ("x" * 20_000, "no token"),
    ],
)
async def test_a_statement_that_is_no_more_a_token_is_a_typed_error_and_no_request(
    bench: Bench, guarded: Guarded, statement: Path, content: str | None, words: str
) -> None:
    instance = await started(bench, spec_of(guarded, statement), {}, Tokens())
    if content is None:
        statement.unlink()
    else:
        statement.write_text(content)
    faults = [(await call(instance)).fault for _ in range(3)]
    assert all(fault and fault.reason is Reason.AUTHORIZATION_FAILED for fault in faults)
    assert all(fault and words in fault.message for fault in faults)
    assert not guarded.granted
    await instance.close()


async def test_a_refused_statement_is_sent_once_and_appears_nowhere(
    bench: Bench, guarded: Guarded, statement: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(form: Mapping[str, str]) -> web.Response:
        said = {"error": "invalid_grant", "error_description": f"expired: {form['assertion']}"}
        return web.json_response(said, status=400)

    caplog.set_level(logging.DEBUG)
    guarded.answer = refuse
    instance = await started(bench, spec_of(guarded, statement), {}, Tokens())
    faults = [(await call(instance)).fault for _ in range(5)]
    assert all(fault and fault.metadata["oauth_error"] == "invalid_grant" for fault in faults)
    assert len(guarded.granted) == 1
    told = f"{faults}{bench.warned}{caplog.text}"
    assert "expired" in told
    assert "planted-workload" not in told
    await instance.close()
