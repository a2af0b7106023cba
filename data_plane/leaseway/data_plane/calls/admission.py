"""Whether a call may run, and as what (DESIGN §6): its server, its tool, its arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from leaseway.data_plane.audit.record import Recorder
from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.tools.arguments import parse_arguments
from leaseway.data_plane.core.tools.policy import Counts, ToolPolicy, check_rules, reads_only
from leaseway.data_plane.core.tools.prompts_resources import AdmittedRequest, admit
from leaseway.data_plane.core.tools.toolset import ToolPlan, tool_not_found
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.pool import Pool
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT, LONGEST_KEY, check_caller_names

_LINE_FEED: Final = ord("\n")
_RETURN: Final = ord("\r")
_NUL: Final = rb"\u0000"
"""CEL's library reads a text up to its first NUL; what is behind that would go unjudged."""


class Admission:
    """Admits calls by what is served now; what decides more (policy, rate, audit) belongs here.

    Args:
        pool: What is served.

    Attributes:
        recorder: Records calls, or None where nothing is recorded.
        counts: How much tenants use, and what they were refused.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.counts = Counts()
        self.recorder: Recorder | None = None
        self._loop = asyncio.get_running_loop()

    def admit(self, active: ActiveCall) -> tuple[Generation, ToolPlan | AdmittedRequest]:
        """Return whom a call is for, and what to send, if the rules let it (`judge`).

        Raises:
            Fault: TOOL_NOT_FOUND, SERVER_NOT_READY, INVALID_ARGUMENTS, INVALID_REQUEST.
        """
        call = active.call
        tenant = call.tenant or DEFAULT_TENANT
        if len(tenant) > LONGEST_KEY or len(call.session) > LONGEST_KEY:
            check_caller_names(session=call.session, tenant=tenant)  # the rest where a lease begins
        generation = self._pool.resolve(call.server_id, tenant, call.agent)
        toolset = generation.variant.toolset
        if call.method:
            asked = admit(toolset.prompts_resources, call.server_id, call.method, active.arguments)
            call.tool = asked.name  # what the params say, whatever the caller wrote beside them
            return generation, asked
        plan = toolset.tools.get(call.tool)
        judge = generation.variant.judge
        if judge.is_needed or active.audit is not None:
            active.policy = judge.tool(tenant, call.agent, call.tool)
            if active.policy is None or plan is None:
                known = judge.names(tenant, call.agent)
                raise tool_not_found(call.tool, f"Server {call.server_id}", known)
        elif plan is None:
            plan = toolset.find(call.server_id, call.tool)
        if active.audit is not None and active.policy is not None:
            active.audit.plan = plan
            active.audit.risk = risk = active.policy.risk
            active.audit.writes_first = not reads_only(risk, plan)
        parsed = check_arguments(active, plan)
        if active.audit is not None:
            active.audit.parsed = True
        if active.policy is not None and active.policy.rules:
            active.facts = {
                "tool": call.tool,
                "tenant": tenant,
                "agent": call.agent,
                "session": call.session,
                "args": parsed,
            }
        return generation, plan

    def judge(self, active: ActiveCall) -> None:
        """Refuse an admitted call that a rule denies.

        Raises:
            Fault: PERMISSION_DENIED.
        """
        facts, policy, call = active.facts, active.policy, active.call
        if facts is None or policy is None:
            return
        active.facts = None
        if active.arguments.find(_NUL) >= 0:  # `in` makes and drops an exception first
            raise Fault(
                Reason.PERMISSION_DENIED,
                f"The rules of server {call.server_id} can't judge this call of {call.tool}: a "
                "text in its arguments has the character 0. Leave that out.",
            )
        check_rules(policy, facts, call.server_id)

    def permit(self, active: ActiveCall) -> None:
        """Let a call run, once: count it, and record it first where that must be.

        Raises:
            Fault: RATE_LIMITED; OVERLOADED: it cannot be recorded.
        """
        if self.permit_once_recorded(active):
            self.record((active,))

    def permit_once_recorded(self, active: ActiveCall) -> bool:
        """Let a call run, once: count it; say whether it must be recorded first.

        Raises:
            Fault: RATE_LIMITED.
        """
        if active.is_permitted:
            return False
        active.is_permitted = True
        if active.policy is not None and active.policy.counts:
            self._count(active, active.policy)
        return active.audit is not None and active.audit.writes_first

    def record(self, calls: Iterable[ActiveCall]) -> None:
        """Record calls that are about to run, all of them or none.

        Raises:
            Fault: OVERLOADED: they cannot be recorded.
        """
        assert self.recorder is not None
        self.recorder.begin(
            [
                (
                    active.audit,
                    active.number,
                    active.call,
                    active.arguments,
                    active.lease.id if active.lease is not None else "",
                )
                for active in calls
                if active.audit is not None
            ]
        )

    def _count(self, active: ActiveCall, policy: ToolPolicy) -> None:
        call = active.call
        tenant = call.tenant or DEFAULT_TENANT
        now = self._loop.time()
        active.is_counted = self.counts.take(tenant, call.server_id, policy, now)

    def ended(self, active: ActiveCall) -> None:
        self.counts.ended(active.call.tenant or DEFAULT_TENANT)

    def may_know(self, active: ActiveCall, uri: str) -> bool:
        """Return whether a resource passes its server's filter as it is now."""
        call = active.call
        try:
            generation = self._pool.resolve(
                call.server_id, call.tenant or DEFAULT_TENANT, call.agent
            )
        except Fault:
            return False
        return generation.variant.toolset.prompts_resources.uris.allows(uri)


def check_arguments(active: ActiveCall, plan: ToolPlan) -> dict[str, Any]:
    """Return a call's arguments, parsed, if they fit the tool's input schema.

    Line breaks in the bytes to be sent become spaces: JSON has none inside of its strings, and a
    server that reads lines would take one for the message's end.

    Raises:
        Fault: INVALID_ARGUMENTS.
    """
    if active.arguments:
        parsed = parse_arguments(active.arguments)
        if _LINE_FEED in active.arguments or _RETURN in active.arguments:
            active.arguments = active.arguments.replace(b"\n", b" ").replace(b"\r", b" ")
    else:
        active.arguments, parsed = b"{}", {}
    if plan.check is None or plan.check.accepts(parsed):
        return parsed
    without_nulls = plan.check.without_nulls(parsed)
    if not plan.check.accepts(without_nulls):
        raise Fault(
            Reason.INVALID_ARGUMENTS,
            f"The arguments of {active.call.server_id}:{active.call.tool} do not fit its input "
            "schema.",
            violations=plan.check.violations(without_nulls),
        )
    return parsed
