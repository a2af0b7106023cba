"""Whether a call may run, and as what (DESIGN §6): its server, its tool, its arguments."""

from __future__ import annotations

import asyncio
from typing import Any

from leaseway.data_plane.audit.record import Recorder
from leaseway.data_plane.calls.call import Run
from leaseway.data_plane.core.arguments import parse_arguments
from leaseway.data_plane.core.policy import Counts, ToolPolicy, check_rules
from leaseway.data_plane.core.prompts_resources import Asked, admit
from leaseway.data_plane.core.toolset import ToolPlan, tool_not_found
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.pool import Pool
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT, LONGEST_KEY, check_caller_names


class Admission:
    """Admits calls by what is served now; what decides more (policy, rate, audit) belongs here.

    Args:
        pool: What is served.

    Attributes:
        recorder: Records calls, or None where nothing is recorded.

    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._counts = Counts()
        self.recorder: Recorder | None = None
        self._loop = asyncio.get_running_loop()

    def admit(self, run: Run) -> tuple[Generation, ToolPlan | Asked]:
        """Return whom a call is for, and what to send.

        Raises:
            Fault: TOOL_NOT_FOUND, SERVER_NOT_READY, INVALID_ARGUMENTS, INVALID_REQUEST,
                PERMISSION_DENIED.

        """
        call = run.call
        tenant = call.tenant or DEFAULT_TENANT
        if len(tenant) > LONGEST_KEY or len(call.session) > LONGEST_KEY:
            check_caller_names(session=call.session, tenant=tenant)  # the rest where a lease begins
        generation = self._pool.find(call.server_id, tenant, call.agent)
        toolset = generation.variant.toolset
        if call.method:
            asked = admit(toolset.offered, call.server_id, call.method, run.arguments)
            call.tool = asked.name  # what the params say, whatever the caller wrote beside them
            return generation, asked
        plan = toolset.tools.get(call.tool)
        judge = generation.variant.judge
        if judge.is_needed or run.audit is not None:
            run.policy = judge.tool(tenant, call.agent, call.tool)
            if run.policy is None or plan is None:
                known = judge.names(tenant, call.agent)
                raise tool_not_found(call.tool, f"Server {call.server_id}", known)
        elif plan is None:
            plan = toolset.find(call.server_id, call.tool)
        if run.audit is not None and run.policy is not None:
            run.audit.plan = plan
            run.audit.risk = risk = run.policy.risk
            reads = risk == "read_only" or (risk == "external" and plan.read_only)
            run.audit.writes_first = not reads
        parsed = check_arguments(run, plan)
        if run.audit is not None:
            run.audit.parsed = True
        if run.policy is not None and run.policy.rules:
            facts = {
                "tool": call.tool,
                "tenant": tenant,
                "agent": call.agent,
                "session": call.session,
                "args": parsed,
            }
            check_rules(run.policy, facts, call.server_id)
        return generation, plan

    def permit(self, run: Run) -> None:
        """Let a call run, once: count it, and record it first where that must be.

        Raises:
            Fault: RATE_LIMITED; OVERLOADED: it cannot be recorded.

        """
        if run.is_permitted:
            return
        run.is_permitted = True
        if run.policy is not None and run.policy.counts:
            self._count(run, run.policy)
        if run.audit is not None and run.audit.writes_first:
            assert self.recorder is not None
            lease = run.lease.id if run.lease is not None else ""
            self.recorder.begin(run.audit, run.number, run.call, run.arguments, lease)

    def _count(self, run: Run, policy: ToolPolicy) -> None:
        call = run.call
        tenant = call.tenant or DEFAULT_TENANT
        now = self._loop.time()
        run.is_counted = self._counts.take(tenant, call.server_id, policy, now)

    def ended(self, run: Run) -> None:
        """Note that a call has ended which was counted."""
        self._counts.ended(run.call.tenant or DEFAULT_TENANT)

    def may_know(self, run: Run, uri: str) -> bool:
        """Return whether a resource passes its server's filter as it is now."""
        call = run.call
        try:
            generation = self._pool.find(call.server_id, call.tenant or DEFAULT_TENANT, call.agent)
        except Fault:
            return False
        return generation.variant.toolset.offered.uris.allows(uri)


def check_arguments(run: Run, plan: ToolPlan) -> dict[str, Any]:
    """Return a call's arguments, parsed, if they fit the tool's input schema.

    Line breaks in the bytes to be sent become spaces: JSON has none inside of its strings, and a
    server that reads lines would take one for the message's end.

    Raises:
        Fault: INVALID_ARGUMENTS.

    """
    if run.arguments:
        parsed = parse_arguments(run.arguments)
        if b"\n" in run.arguments or b"\r" in run.arguments:
            run.arguments = run.arguments.replace(b"\n", b" ").replace(b"\r", b" ")
    else:
        run.arguments, parsed = b"{}", {}
    if plan.check is None or plan.check.accepts(parsed):
        return parsed
    without_nulls = plan.check.without_nulls(parsed)
    if not plan.check.accepts(without_nulls):
        raise Fault(
            Reason.INVALID_ARGUMENTS,
            f"The arguments of {run.call.server_id}:{run.call.tool} do not fit its input schema.",
            violations=plan.check.violations(without_nulls),
        )
    return parsed
