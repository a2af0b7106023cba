"""Decides whether a call may run (design.md#calls): server, tool, limits, arguments, rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from leaseway.data_plane.calls.call import ActiveCall, parse_meta
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.core.desired_state import HeldVariant
from leaseway.data_plane.core.tools.arguments import parse_arguments
from leaseway.data_plane.core.tools.budgets import PermitNeeded, WorkerBudgets
from leaseway.data_plane.core.tools.policy import (
    TOOLS_CALL,
    JudgedCall,
    ToolPolicy,
    judge,
)
from leaseway.data_plane.core.tools.prompts_resources import (
    SUBSCRIBE,
    AdmittedRequest,
    admit,
    has_only_tools,
    judged_parts,
)
from leaseway.data_plane.core.tools.toolset import ToolPlan, tool_not_found
from leaseway.data_plane.core.tools.usage import CallUsage
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.spec.rules.needs import Facts
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ROOTS_CHANGED
from leaseway.wire.names import MAX_KEY_LENGTH, check_caller_names, is_valid_tenant

_LINE_FEED: Final = ord("\n")
_RETURN: Final = ord("\r")
_NUL: Final = rb"\u0000"
"""CEL's library reads a text up to its first NUL; the rest would not be evaluated."""
_MAX_KNOWN: Final = 4_096
_LISTING: Final = "waiting for the tools of its user or session"
_TO_BE_FOUND: Final[Any] = None
"""Stands for the plan of a request that calls no tool: its params decide, each time."""


class WaitNeeded(Exception):
    """Something must be done before a call can be admitted.

    Args:
        wait: Waits until that has been tried.
        what: What it is, for the call's trace.
    """

    def __init__(self, wait: Callable[[], Awaitable[None]], what: str = _LISTING) -> None:
        self.wait = wait
        self.what = what


class LoginNeeded(Exception):
    """A server could not be listed for the caller, for want of a login: that comes first."""


class Admitted(Struct, eq=False):
    """What a call is admitted by: the same for all calls of one head, until the servers change.

    Attributes:
        generation: The server.
        variant: Its variant, by which the call is checked.
        plan: The tool.
        policy: The tool's policy for the caller; None if there are neither policies nor an audit.
        line: The stages that such calls pass, once they are chosen, or None.
    """

    generation: Generation
    variant: HeldVariant
    plan: ToolPlan = _TO_BE_FOUND
    policy: ToolPolicy | None = None
    line: tuple[Callable[[ActiveCall], bool], ...] | None = None


class CallAdmission:
    """Admits calls by the current configuration of their servers.

    Args:
        pool: The servers.
        leases: The leases, some of which have tools of their own.
        budgets: This worker's shares of limits.

    Attributes:
        usage: Calls and rejections by tenant.
    """

    def __init__(self, pool: Pool, leases: WorkerLeaseManager, budgets: WorkerBudgets) -> None:
        self._pool = pool
        self._leases = leases
        self._own_variants = leases.own_tools.variants
        self._clients = pool.context.clients
        self.usage = CallUsage(budgets)
        self._take_granted = self.usage.take_granted
        self._known: dict[object, Admitted] = {}
        pool.resolves_anew.connect(self._known.clear)
        self._loop = asyncio.get_running_loop()
        self._preparing: dict[ToolPlan, asyncio.Future[None]] = {}

    def admit(self, active: ActiveCall) -> Admitted:
        """Find a call's server and plan. Its rules are still to be evaluated (`check_rules`).

        Raises:
            Fault: TOOL_NOT_FOUND, SERVER_NOT_READY, RATE_LIMITED, INVALID_ARGUMENTS,
                INVALID_REQUEST.
            PermitNeeded: Permits of a limit come first. Get them with `missing_permit`; then admit
                the call anew.
            WaitNeeded: The server must be listed for the caller, or the tool's schemas compiled,
                first; then admit it anew.
            LoginNeeded: The caller must have logged in first; then admit it anew.
        """
        call = active.call
        active.client = self._clients.find(call.mcp_client) if call.mcp_client else None
        admitted = self._known.get(call.head)
        if (
            admitted is None
            or admitted.variant is not admitted.generation.variant
            or (self._own_variants and call.server_id in self._own_variants)
        ):
            admitted = self._find(active)
            if call.method:
                active.plan = self._admit_request(active, admitted.variant)
                return admitted
        active.generation, plan, policy = admitted.generation, admitted.plan, admitted.policy
        if policy is None:
            check_arguments(active, plan)
            active.plan = plan
            return admitted
        active.policy = policy
        if active.audit is not None:
            active.audit.tool = policy
        if policy.demands and not active.was_counted:
            self._count(active, policy)
        parsed = check_arguments(active, plan)
        active.plan = plan
        if policy.judges_calls:
            extra = _other_values(active) if policy.restrictions else None
            active.judged = JudgedCall(_facts(call, TOOLS_CALL, parsed), extra)
        return admitted

    def _find(self, active: ActiveCall) -> Admitted:
        """Find a call's server, and its tool if it calls one; remember them for its head.

        Raises:
            Fault: TOOL_NOT_FOUND, SERVER_NOT_READY, INVALID_REQUEST.
            WaitNeeded: The server must be listed for the caller, or the tool's schemas compiled.
            LoginNeeded: The tool is unknown because the server was not listed for the caller.
        """
        call = active.call
        if not is_valid_tenant(call.tenant) or len(call.session) > MAX_KEY_LENGTH:
            # Leases check them fully.
            check_caller_names(session=call.session, tenant=call.tenant)
        active.generation = generation = self._pool.resolve(
            call.server_id, call.tenant, call.agent, call.user, call.subject_token
        )
        if generation.needs_listing:
            raise WaitNeeded(generation.wait_for_listing)
        variant = generation.variant
        if self._own_variants and call.server_id in self._own_variants:
            variant = self._own_variant(active, variant)
        if call.method:
            return Admitted(generation, variant)
        plan = variant.toolset.tools.get(call.tool)
        policies = variant.policies
        policy = None
        if policies.is_needed or active.audit is not None:
            policy = active.policy = policies.find(call.tenant, call.agent, call.tool)
            if policy is None or plan is None:
                self._check_changes(active)
                names = policies.names(call.tenant, call.agent)
                raise tool_not_found(call.tool, f"Server {call.server_id}", names)
        elif plan is None:
            self._check_changes(active)
            plan = variant.toolset.find(call.server_id, call.tool)
        if plan.must_be_prepared:
            raise WaitNeeded(partial(self._prepare, plan), "compiling the schemas of its tool")
        admitted = Admitted(generation, variant, plan, policy)
        is_of_all = variant.subject == "service" and variant is generation.variant
        if is_of_all and call.head is not None:
            if len(self._known) >= _MAX_KNOWN:  # callers choose the heads
                self._known.clear()
            self._known[call.head] = admitted
        return admitted

    async def _prepare(self, plan: ToolPlan) -> None:
        """Compile the schemas of a tool in a thread, once for all calls that wait for it."""
        running = self._preparing.get(plan)
        if running is None:
            running = self._preparing[plan] = self._loop.run_in_executor(None, plan.prepare)
            running.add_done_callback(partial(self._end_preparing, plan))
        await asyncio.shield(running)

    def _end_preparing(self, plan: ToolPlan, _done: asyncio.Future[None]) -> None:
        del self._preparing[plan]

    def _own_variant(self, active: ActiveCall, variant: HeldVariant) -> HeldVariant:
        """Return the variant by which the calls of a session are checked."""
        holder = (active.call.tenant, active.call.session, active.generation.key.user)
        own = self._own_variants[active.call.server_id].get(holder)
        return own.variant if own is not None and own.base is variant else variant

    def _check_changes(self, active: ActiveCall) -> None:
        """Raise, once, if what is unknown may become known.

        Raises:
            WaitNeeded: A lease's server has just reported other tools.
            LoginNeeded: The server was not listed for the caller.
        """
        if active.has_waited_for_lists:
            return
        if active.generation.lacks_listing and active.call.method != SUBSCRIBE:
            active.has_waited_for_lists = True
            raise LoginNeeded
        if active.generation.is_shared:
            return
        live = self._leases.instance_of(active.call.lease_key, active.generation.key.user)
        of_all = bool(active.call.method)
        if live is not None and live.changes.has_unread(of_all=of_all):
            active.has_waited_for_lists = True
            raise WaitNeeded(partial(live.changes.wait, of_all=of_all))

    def _admit_request(self, active: ActiveCall, variant: HeldVariant) -> AdmittedRequest:
        """Return a request that calls no tool: for a prompt, a resource or a completion.

        That the roots of a client have changed is told on a lease, and holds nothing to judge.
        """
        call, policies = active.call, variant.policies
        is_notice = call.method == ROOTS_CHANGED
        if is_notice and not call.lease_id:
            raise Fault(Reason.INVALID_REQUEST, f"{call.method} is told on a lease: name one.")
        if policies.is_needed:
            if not is_notice and not policies.allows_all(call.tenant, call.agent):
                raise has_only_tools(call.server_id)
            active.policy = policies.limits_of_request(call.tenant, call.agent, call.method)
            if active.policy.demands and not active.was_counted:
                self._count(active, active.policy)
        offered = variant.toolset.prompts_resources
        try:
            request = admit(offered, call.server_id, call.method, active.arguments)
        except Fault as fault:
            if fault.reason is Reason.TOOL_NOT_FOUND:
                self._check_changes(active)
            raise
        # The params decide, not the caller's `tool`.
        call = active.call = replace(call, tool=request.name)
        if policies.is_needed:
            names: tuple[str, ...] = ()
            if not is_notice:
                parts = judged_parts(request)
                names = parts.names
                active.judged = JudgedCall(
                    _facts(call, call.method, parts.arguments),
                    extra={**_other_values(active), **parts.others},
                    uri=parts.uri,
                    names=names,
                )
            active.policy = policies.find_request(call.tenant, call.agent, call.method, names)
            if not active.policy.judges_calls:
                active.judged = None
        return request

    def _count(self, active: ActiveCall, policy: ToolPolicy) -> None:
        """Count a call against its limits, once and before any other work for it.

        Raises:
            Fault: RATE_LIMITED.
            PermitNeeded: Permits must be asked for.
        """
        now = self._loop.time()
        if not self._take_granted(policy.meter, now):
            self.usage.start_call(policy.demands, now)
        active.slots, active.was_counted = policy.slots, True

    def missing_permit(self, active: ActiveCall) -> PermitNeeded | None:
        """Count a call that waits for permits; return what it still lacks, or None.

        Raises:
            Fault: RATE_LIMITED.
        """
        assert active.policy is not None  # it has limits
        try:
            if not active.was_counted:
                self._count(active, active.policy)
        except PermitNeeded as needed:
            return needed
        return None

    def is_uri_visible(self, active: ActiveCall, uri: str) -> bool:
        """Return whether a call may still name a URI, by the current configuration."""
        call = active.call
        try:
            generation = self._pool.resolve(call.server_id, call.tenant, call.agent)
        except Fault:
            return False
        variant = generation.variant
        if not variant.toolset.prompts_resources.uris.allows(uri):
            return False
        return variant.policies.may_read(call.tenant, call.agent, uri)


def check_rules(active: ActiveCall) -> None:
    """Check the permissions and rules of an admitted call, once.

    The server gets the arguments encoded anew, so that of a name that is there twice it reads the
    value that was checked.

    Raises:
        Fault: PERMISSION_DENIED.
    """
    judged, policy, call = active.judged, active.policy, active.call
    if judged is None or policy is None:
        return
    active.judged = None
    if active.arguments.find(_NUL) >= 0:  # `in` makes and drops an exception first
        raise Fault(
            Reason.PERMISSION_DENIED,
            f"The rules of server {call.server_id} cannot check this call of {call.tool}: a text "
            "in its arguments has the character 0. Remove it.",
        )
    judge(policy, judged, call.server_id)
    if not call.method:
        active.arguments = msgspec.json.encode(judged.facts["args"])


def _facts(call: IncomingCall, method: str, arguments: Mapping[str, Any]) -> Facts:
    return {
        "method": method,
        "tool": call.tool,
        "tenant": call.tenant,
        "agent": call.agent,
        "session": call.session,
        "args": arguments,
    }


def _other_values(active: ActiveCall) -> dict[str, Any]:
    """Return what else of the caller's reaches the server."""
    call = active.call
    values: dict[str, Any] = {}
    if call.meta:
        values["_meta"] = parse_meta(call.meta)
    if call.input:
        values["input"] = parse_arguments(call.input)
    if active.client is not None:
        values["client"] = {"info": active.client.info, **active.client.capabilities}
    return values


def check_arguments(active: ActiveCall, plan: ToolPlan) -> dict[str, Any]:
    """Parse a call's arguments and check them against the tool's input schema.

    Line breaks in the bytes to be sent become spaces: JSON strings contain none, and a server that
    reads lines would take one for the end of the message. An argument that is a text with the JSON
    of what the schema wants becomes that, as in servers on the official Python package.

    Raises:
        Fault: INVALID_ARGUMENTS.
    """
    if active.arguments:
        parsed = parse_arguments(active.arguments)
        if _LINE_FEED in active.arguments or _RETURN in active.arguments:
            active.arguments = active.arguments.replace(b"\n", b" ").replace(b"\r", b" ")
    else:
        active.arguments, parsed = b"{}", {}
    if plan.arguments is None:
        return parsed
    check = plan.arguments.check or plan.arguments.compiled()
    if len(active.arguments) > check.free_size and not check.is_limited(active.arguments, parsed):
        raise Fault(
            Reason.INVALID_ARGUMENTS,
            f"The arguments of {active.call.server_id}:{active.call.tool} are too many to check "
            "against its input schema, which is complex. Send fewer values, or shorter ones.",
        )
    if check.accepts(parsed):
        return parsed
    without_nulls = check.without_nulls(parsed) if b"null" in active.arguments else parsed
    if without_nulls is parsed or not check.accepts(without_nulls):
        read = check.with_texts_read(without_nulls)
        if read is not None:
            encoded = msgspec.json.encode(read)
            read = parse_arguments(encoded)
            if check.is_limited(encoded, read) and check.accepts(read):
                active.arguments = encoded
                return read
        violations = check.violations(without_nulls)
        details = "" if violations else " They are too complex to say where."
        raise Fault(
            Reason.INVALID_ARGUMENTS,
            f"The arguments of {active.call.server_id}:{active.call.tool} do not fit its input "
            f"schema.{details}",
            violations=violations,
        )
    return parsed
