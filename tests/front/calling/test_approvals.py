"""What a client's user says of a call that another approver has decided meanwhile."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.conftest import BOUND

from leaseway.front.calling import approvals
from leaseway.front.calling.approvals import Decisions, apply_answer, ask_user
from leaseway.front.sessions.listener import Listener, drop
from leaseway.sdk import ConfirmationRequired, InvalidRequest, LeasewayError


class Decided:
    """A client whose approvals others have decided."""

    async def approve(self, approval_id: str) -> None:
        raise InvalidRequest(f"Approval {approval_id} was already approved by ann.")

    deny = approve


async def test_only_a_user_who_allows_a_call_leaves_it_to_another_approver() -> None:
    client: Any = Decided()

    async def answer(**answer: Any) -> None:
        responses = json.dumps({"leaseway-approval": answer}).encode()
        await apply_answer(client, "leaseway-approval a1", responses)

    await answer(action="accept", content={"approve": True})
    await answer(action="cancel")
    for denial in ({"action": "decline"}, {"action": "accept", "content": {"approve": False}}):
        with pytest.raises(InvalidRequest, match="a1 was already approved"):
            await answer(**denial)


class Deciding:
    """A client whose approval is decided elsewhere after a look that fails."""

    def __init__(self) -> None:
        self.looks: list[Any] = ["waiting", "waiting", LeasewayError("away"), "approved"]

    async def approvals(self) -> list[SimpleNamespace]:
        look = self.looks.pop(0)
        if isinstance(look, LeasewayError):
            raise look
        shown = {"server_id": "bank", "tool": "pay", "arguments": "{}", "extra": ""}
        return [SimpleNamespace(id="a1", state=look, **shown)]


async def test_the_question_to_an_older_clients_user_is_withdrawn_once_another_has_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(approvals, "_LOOK", 0.0)
    asker = Mock()
    client: Any = Deciding()
    error = ConfirmationRequired("approve", metadata={"confirmation_id": "a1"})
    async with asyncio.timeout(BOUND):
        await ask_user(client, Decisions(client), Listener(drop, asker), error)
    (question,) = asker.ask.call_args.args
    asker.withdraw.assert_called_once_with(question)
    assert client.looks == [], "nothing more is asked, and nothing decided"


async def test_one_look_tells_all_open_questions_of_what_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(approvals, "_LOOK", 0.0)
    waiting = {"a1", "a2", "a3"}
    looks = 0

    class Listing:
        async def approvals(self) -> list[SimpleNamespace]:
            nonlocal looks
            looks += 1
            shown = [SimpleNamespace(id=name, state="waiting") for name in waiting]
            waiting.discard(f"a{looks}")
            return shown

    listing: Any = Listing()
    decisions = Decisions(listing)
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(decisions.wait(name) for name in ("a1", "a2", "a3")))
    assert looks == 4, "three decisions and the look that has seen the last"
