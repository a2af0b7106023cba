"""The steps of people's logins that a worker takes for the console."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.data_plane.conftest import worker_bench

from leaseway.data_plane.core.ports import LoginSubject
from leaseway.spec.auth import Auth
from leaseway.v1 import sync_pb2
from leaseway.vault.key import VaultPlace
from leaseway.wire.errors import Fault, Reason


class Links:
    """Logins of anna's that are finished by a code."""

    def use_console(self, url: str) -> None:
        pass

    def link(self, subject: LoginSubject) -> str:
        raise NotImplementedError

    def subject(self, ticket: str) -> LoginSubject:
        raise NotImplementedError

    async def begin(self, ticket: str, redirect: str) -> tuple[str, str]:
        raise NotImplementedError

    async def finish(self, state: str, answer: Mapping[str, str]) -> LoginSubject:
        if "code" not in answer:
            raise Fault(Reason.INVALID_REQUEST, "The login failed: there is no code.")
        return LoginSubject("mail", "acme", "anna")


@pytest.mark.parametrize("answer", [{"code": "x"}, {"error": "access_denied"}])
async def test_calls_use_a_finished_login_before_its_person_hears_of_it(
    answer: dict[str, str],
) -> None:
    async with worker_bench(login_links=Links()) as bench:  # without a folder to look at
        changed = bench.worker.logins.next_change()
        step = sync_pb2.LoginStep(id=7, state="s", answer=answer)
        bench.plane.send(login_step=step)
        result = await bench.plane.expect("login_result")
        assert (result.id, result.user) == (7, "anna" if "code" in answer else "")
        assert changed.done() is ("code" in answer)


async def test_a_call_uses_a_login_that_another_process_has_just_finished(tmp_path: Path) -> None:
    place = VaultPlace(tmp_path / "vault", tmp_path / "key")
    place.logins.mkdir()
    async with worker_bench(vault=place) as bench:
        await bench.serve("mail", auth=Auth("authorization_code", "tenant"))
        caller = bench.caller()
        for tenant in ("acme", "beta", "gamma"):
            # More than one: on a busy machine a start may be repeated before anybody logs in.
            bench.servers.faults = [
                Fault(Reason.LOGIN_REQUIRED, "Nobody is logged in.") for _ in range(9)
            ]
            fault = await caller.refused("mail", tenant=tenant)
            assert fault.reason is Reason.LOGIN_REQUIRED
            bench.servers.faults = []
            (place.logins / tenant).touch()
            assert not (await caller.call("mail", tenant=tenant)).HasField("status")
