"""Calls that need a person: the client's own user is asked, where the client can ask one.

A legacy client gets a request on the stream of its call, a modern one an `input_required` result
that it answers with another call. Only a client whose credential may agree is asked; for others
the error says who has to be.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Final

import msgspec

from leaseway.front.calling.relay import Listener
from leaseway.front.messages import encode
from leaseway.sdk import AsyncClient, ConfirmationRequired, InvalidRequest
from leaseway.sdk.transport.server_requests import ServerRequest
from leaseway.v1 import execution_pb2
from leaseway.wire.messages.mcp import ELICIT

_STATE: Final = "leaseway-approval "
_NAME: Final = "leaseway-approval"
_SCHEMA: Final = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Allow this call", "default": False}},
    "required": ["approve"],
}
_PATIENCE: Final = 900.0
_numbers = itertools.count(1)


def can_ask(listener: Listener, error: ConfirmationRequired) -> bool:
    """Return whether a client's user can be asked about a call."""
    reaches = listener.passes_input or listener.ask is not None
    return error.may_approve and reaches and ELICIT in listener.answers


def continues(state: str | None) -> bool:
    """Return whether a modern call brings its user's answer to `asking`."""
    return state is not None and state.startswith(_STATE)


async def asking(client: AsyncClient, error: ConfirmationRequired) -> bytes:
    """Return the result that has a modern client ask its user."""
    params = await _params(client, error)
    return encode(
        {
            "resultType": "input_required",
            "inputRequests": {_NAME: {"method": ELICIT, "params": params}},
            "requestState": _STATE + error.confirmation_id,
        }
    )


async def take_answer(client: AsyncClient, state: str, responses: bytes) -> None:
    """Decide as a modern client's user has answered.

    Raises:
        LeasewayError: The credential may not decide.
    """
    try:
        answers = msgspec.json.decode(responses or b"{}")
    except msgspec.DecodeError:
        answers = {}
    answer = answers.get(_NAME) if isinstance(answers, dict) else None
    await _decide(client, state.removeprefix(_STATE), answer)


async def ask_user(client: AsyncClient, listener: Listener, error: ConfirmationRequired) -> None:
    """Ask a legacy client's user, and decide as it answers.

    Raises:
        LeasewayError: The credential may not decide.
    """
    answered: asyncio.Future[execution_pb2.Answer] = asyncio.get_running_loop().create_future()

    def take(answer: execution_pb2.Answer) -> None:
        if not answered.done():
            answered.set_result(answer)

    params = encode(await _params(client, error))
    asked = execution_pb2.Ask(ask_id=next(_numbers), method=ELICIT, params=params)
    question = ServerRequest(asked, take)
    assert listener.ask is not None
    listener.ask(question)
    try:
        async with asyncio.timeout(_PATIENCE):
            answer = await answered
    except TimeoutError:
        return
    finally:
        if listener.withdraw is not None:
            listener.withdraw(question)
    result = msgspec.json.decode(answer.result) if answer.result else None
    await _decide(client, error.confirmation_id, result)


async def _params(client: AsyncClient, error: ConfirmationRequired) -> dict[str, Any]:
    found = (one for one in await client.approvals() if one.id == error.confirmation_id)
    approval = next(found, None)
    if approval is None:
        raise error
    return {
        "mode": "form",
        "message": f"May {approval.server_id}:{approval.tool} be called with "
        f"{approval.arguments}? It needs a person's agreement.",
        "requestedSchema": _SCHEMA,
    }


async def _decide(client: AsyncClient, approval: str, answer: object) -> None:
    """Agree or refuse; without a clear answer the call goes on waiting for somebody else."""
    action = answer.get("action") if isinstance(answer, dict) else None
    content = answer.get("content") if isinstance(answer, dict) else None
    agrees = action == "accept" and isinstance(content, dict) and content.get("approve") is True
    try:
        if agrees:
            await client.approve(approval)
        elif action in ("accept", "decline"):
            await client.deny(approval)
    except InvalidRequest:
        return  # somebody else was faster, or it has expired: the call itself says which
