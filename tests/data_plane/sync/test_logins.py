"""The steps of people's logins that a worker takes for the console."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.data_plane.conftest import worker_bench

from leaseway.data_plane.core.ports import LoginSubject
from leaseway.v1 import sync_pb2
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
        changed = bench.worker.pool.next_login()
        step = sync_pb2.LoginStep(id=7, state="s", answer=answer)
        bench.plane.send(login_step=step)
        result = await bench.plane.expect("login_result")
        assert (result.id, result.user) == (7, "anna" if "code" in answer else "")
        assert changed.done() is ("code" in answer)
