"""Calls that need a person's agreement: what both clients do about them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from leaseway.sdk.errors import ConfirmationRequired
from leaseway.sdk.operators import operations
from leaseway.sdk.operators.views import Approval
from leaseway.sdk.runtime import Runtime
from leaseway.sdk.validation import check_text

OnApproval = Callable[[Approval], object]
"""Asks a person whether a call may run: True agrees, False refuses, None leaves it waiting."""

At = Callable[[], tuple[Runtime, str]]


async def waiting(at: At, error: ConfirmationRequired) -> Approval:
    """Return the approval that a call waits for.

    Raises:
        ConfirmationRequired: It is not there any more: another one will be.
    """
    for approval in await operations.perform(at, operations.fetch_approvals, None):
        if approval.id == error.confirmation_id:
            return approval
    raise error


async def decide(at: At, approval_id: str, note: str, *, approve: bool) -> Approval:
    """Agree to a call, or refuse it.

    Raises:
        InvalidRequest: There is no such approval, or it was decided on already.
    """
    check_text("approval", approval_id)
    check_text("note", note)
    operation = partial(
        operations.decide_approval, approval_id=approval_id, approve=approve, note=note
    )
    return await operations.perform(at, operation, None)
