"""Approvals: a call that needs a person's approval asks the client's own user by elicitation.

A legacy client gets an elicitation request on the stream of its call, a modern one an
`input_required` result, which it answers with another call. Only a client whose credential may
approve is asked; others get the error.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import Any, Final

import msgspec

from leaseway.front.protocol.messages import encode
from leaseway.front.sessions.listener import Listener
from leaseway.sdk import AsyncClient, ConfirmationRequired, InvalidRequest, LeasewayError
from leaseway.sdk.relay import own_request
from leaseway.wire.messages.mcp import ELICIT
from leaseway.wire.timing.running_tasks import start_lasting_task

_STATE: Final = "leaseway-approval "
_NAME: Final = "leaseway-approval"
_SCHEMA: Final = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Allow this call", "default": False}},
    "required": ["approve"],
}
_TIMEOUT: Final = 900.0
_LOOK: Final = 5.0
"""Seconds between two looks whether another approver has decided."""
_ask_ids = itertools.count(1)


class Decisions:
    """Tells when other approvers have decided: one look tells it to all questions that are open.

    Args:
        client: The tenant's client.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._open: dict[asyncio.Future[None], str] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, approval_id: str) -> None:
        """Wait until an approval is decided or has expired."""
        decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[decided] = approval_id
        if self._looking is None or self._looking.done():
            self._looking = start_lasting_task(self._look(), "front approvals")
        try:
            await decided
        finally:
            del self._open[decided]
            if not self._open:
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            asked = tuple(self._open.items())  # later ones may be missing from what is read now
            with suppress(LeasewayError):  # such as without a control plane: users still decide
                listed = await self._client.approvals()
                waiting = {item.id for item in listed if item.state == "waiting"}
                for decided, approval_id in asked:
                    if approval_id not in waiting and not decided.done():
                        decided.set_result(None)


def can_ask(listener: Listener, error: ConfirmationRequired) -> bool:
    """Return whether the client's user may approve the call and supports elicitation."""
    can_elicit = listener.passes_input or listener.asker is not None
    return error.may_approve and can_elicit and ELICIT in listener.answers


def is_answer(state: str | None) -> bool:
    """Return whether a `requestState` answers the result of `input_required`."""
    return state is not None and state.startswith(_STATE)


def was_asked(state: str | None, error: ConfirmationRequired) -> bool:
    """Return whether a `requestState` answers the question about this very approval.

    If the call still waits, its user has left the decision to someone else.
    """
    return state == _STATE + error.confirmation_id


async def input_required(client: AsyncClient, error: ConfirmationRequired) -> bytes:
    """Return the `input_required` result that makes a modern client ask its user."""
    params = await _params(client, error)
    return encode(
        {
            "resultType": "input_required",
            "inputRequests": {_NAME: {"method": ELICIT, "params": params}},
            "requestState": _STATE + error.confirmation_id,
        }
    )


async def apply_answer(client: AsyncClient, state: str, responses: bytes) -> None:
    """Approve or deny the call according to the `inputResponses` of a modern client.

    Raises:
        LeasewayError: The credential may not approve calls.
    """
    try:
        answers = msgspec.json.decode(responses or b"{}")
    except msgspec.DecodeError:
        answers = {}
    answer = answers.get(_NAME) if isinstance(answers, dict) else None
    await _decide(client, state.removeprefix(_STATE), answer)


async def ask_user(
    client: AsyncClient, decisions: Decisions, listener: Listener, error: ConfirmationRequired
) -> None:
    """Ask a legacy client's user, then approve or deny the call.

    The question is withdrawn once another approver has decided, as `decisions` tells.

    Raises:
        LeasewayError: As `_decide`.
    """
    loop = asyncio.get_running_loop()
    pending: asyncio.Future[bytes] = loop.create_future()

    def on_answer(answer: bytes) -> None:
        if not pending.done():
            pending.set_result(answer)

    params = encode(await _params(client, error))
    server_request = own_request(next(_ask_ids), ELICIT, params, on_answer)
    assert listener.asker is not None
    listener.asker.ask(server_request)
    elsewhere = loop.create_task(decisions.wait(error.confirmation_id))
    try:
        await asyncio.wait(
            (pending, elsewhere), timeout=_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        elsewhere.cancel()
        listener.asker.withdraw(server_request)
    if pending.done():
        answer = pending.result()
        result = msgspec.json.decode(answer) if answer else None
        await _decide(client, error.confirmation_id, result)


async def _params(client: AsyncClient, error: ConfirmationRequired) -> dict[str, Any]:
    matching = (item for item in await client.approvals() if item.id == error.confirmation_id)
    approval = next(matching, None)
    if approval is None:
        raise error
    extra = f" and, beside the arguments, with {approval.extra}" if approval.extra else ""
    return {
        "mode": "form",
        "message": f"May {approval.server_id}:{approval.tool} be called with "
        f"{approval.arguments}{extra}? It needs a person's approval.",
        "requestedSchema": _SCHEMA,
    }


async def _decide(client: AsyncClient, approval_id: str, answer: object) -> None:
    """Approve or deny a call; after any other answer it still waits for another approver.

    Raises:
        LeasewayError: The credential may not approve calls, or the user denies one that another
            approver has decided: it may be approved, and must not be made again.
    """
    action = answer.get("action") if isinstance(answer, dict) else None
    content = answer.get("content") if isinstance(answer, dict) else None
    is_approved = (
        action == "accept" and isinstance(content, dict) and content.get("approve") is True
    )
    if is_approved:
        with suppress(InvalidRequest):  # decided elsewhere, or expired; the call reports which
            await client.approve(approval_id)
    elif action in ("accept", "decline"):
        await client.deny(approval_id)
