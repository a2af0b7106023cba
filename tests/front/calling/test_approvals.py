"""What a client's user says of a call that another approver has decided meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leaseway.front.calling.approvals import apply_answer
from leaseway.sdk import InvalidRequest


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
