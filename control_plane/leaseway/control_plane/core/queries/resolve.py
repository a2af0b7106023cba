"""Resolves names of tools and prompts, and URIs of resources, in a reader's view."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from leaseway.control_plane.core.catalog.exposure import shown
from leaseway.control_plane.core.catalog.kinds import RESOURCES, TOOLS, ItemKind, NamedKind
from leaseway.control_plane.core.catalog.prompts_resources import RUNS_AS_TASK
from leaseway.control_plane.core.catalog.snapshot import NamedTarget, ResourceTarget, View
from leaseway.control_plane.core.catalog.subjects import Reader
from leaseway.control_plane.core.catalog.variants import ExposedName
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial, PendingServers
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.queries.place import (
    advice_of,
    did_you_mean,
    no_config,
    no_server,
    pending_servers,
)
from leaseway.spec.exposed_names import exposed_name
from leaseway.spec.filters.uri_templates import ComparedUri, TooMuchEffort
from leaseway.wire.bounds import MAX_URI
from leaseway.wire.errors import Reason
from leaseway.wire.messages.admin import ADMIN_TOOLSET, LOGIN_TOOL
from leaseway.wire.names import split_qualified
from leaseway.wire.text.suggestions import alike


def unknown_server(
    state: Coordinator, tenant: str, server_ids: Iterable[str], now: Moment
) -> Denial | None:
    """Return the denial for the first unknown server of a list request, or None (design.md#errors).

    A configured server that has not started is known. All are accepted before the first
    configuration.
    """
    listed = state.visible.view(tenant).servers
    missing = [
        server_id
        for server_id in server_ids
        if server_id not in listed and server_id != ADMIN_TOOLSET
    ]
    if not missing or state.servers.desired is None:
        return None
    configured = state.servers.variants_of(tenant)
    for server_id in missing:
        if server_id not in configured:
            outcome = no_server(state, Reader(tenant), server_id, now)
            if isinstance(outcome, Denial) and outcome.reason is Reason.TOOL_NOT_FOUND:
                return outcome
    return None


_WAITED_FOR: Final = 5
"""Limit of servers in an answer that depends on more of them."""
_NAMED: Final = 5
"""Servers in a sentence about those that have not started."""

_SHOWN: Final = 300
"""Limit of characters of a name or URI in a message."""
_TargetT = TypeVar("_TargetT", NamedTarget, ResourceTarget)


def find_name(
    state: Coordinator,
    reader: Reader,
    name: str,
    now: Moment,
    kind: NamedKind = TOOLS,
    server_id: str = "",
) -> NamedTarget | PendingServers | Denial:
    """Resolve an exposed (`time_now`) or qualified (`time:now`) name.

    Args:
        reader: For whom.
        name: The name; an original name is enough if the server is given.
        kind: Tools or prompts.
        server_id: Restricts the search to this server; empty for any.
    """
    return _find_for(state, reader, partial(_find_name, state, reader, name, now, kind, server_id))


def _find_for(
    state: Coordinator,
    reader: Reader,
    find: Callable[[View], _TargetT | PendingServers | Denial],
) -> _TargetT | PendingServers | Denial:
    """Find what a reader sees, or else what a server has that was not listed for it.

    So a call of a known name is told by the worker that a login comes first.
    """
    if not state.has_config:
        return no_config()
    found = find(state.view(reader))
    if not isinstance(found, Denial) and not _is_guess(found):
        return found
    base = state.visible.view(reader.tenant, reader.agent)
    unlisted = {served.key.server_id for served, _ in state.subjects.unlisted(base, reader)}
    if not unlisted:
        return found
    stand_in = find(base)
    if isinstance(stand_in, PendingServers | Denial) or _is_guess(stand_in):
        return found
    return stand_in if stand_in.served.key.server_id in unlisted else found


def _is_guess(found: object) -> bool:
    """Return whether a name was found only because its server is not listed before a login."""
    return isinstance(found, NamedTarget) and found.served.awaits_login


def _find_name(
    state: Coordinator,
    reader: Reader,
    name: str,
    now: Moment,
    kind: NamedKind,
    server_id: str,
    view: View,
) -> NamedTarget | PendingServers | Denial:
    target = view.named(kind).get(name)
    if target is not None and server_id in ("", target.served.key.server_id):
        return target
    if kind is TOOLS and (denied := _task_only(view, name, server_id)) is not None:
        return denied
    split = split_qualified(name)
    if server_id and _is_own_name(view, name, split, server_id, kind):
        split = (server_id, name)
    if split is not None:
        if server_id not in ("", split[0]):
            return _other_server(state, reader, view, name, server_id, kind, now)
        return _find_qualified(state, reader, view, split, kind, now)
    waiting = _pending(state, reader, view)
    if waiting is not None:
        return waiting
    return _not_found(state, reader, name, view.named(kind), kind)


def _is_own_name(
    view: View, name: str, split: tuple[str, str] | None, server_id: str, kind: NamedKind
) -> bool:
    """Return whether a name is that of the server itself, which may have a colon."""
    if split is None:
        return True
    if split[0] == server_id and view.qualified(*split, kind) is not None:
        return False
    return view.qualified(server_id, name, kind) is not None


def _task_only(view: View, name: str, server_id: str) -> Denial | None:
    """Return the denial for a tool that can only be called as an MCP task, or None."""
    for served in view.with_task_only_tools:
        spec = served.spec
        if server_id not in ("", spec.key.server_id):
            continue
        for original in served.listing.task_only:
            names = {f"{spec.key.server_id}:{original}", exposed_name(original, spec.transforms)}
            if server_id:
                names.add(original)
            if name in names and spec.tools.passes(original):
                text = f"Server '{spec.key.server_id}' has no tool {shown(name, _SHOWN)} to call:"
                return Denial(Reason.TOOL_NOT_FOUND, f"{text} {RUNS_AS_TASK}")
    return None


def _pending(state: Coordinator, reader: Reader, view: View) -> PendingServers | None:
    """Return the first servers, by id, without a first result; each of them may have any name."""
    waiting = (name for name in pending_servers(state, reader) if name not in view.servers)
    first = tuple(islice(waiting, _WAITED_FOR))
    return PendingServers(first) if first else None


def find_resource(
    state: Coordinator,
    reader: Reader,
    uri: str,
    now: Moment,
    server_id: str = "",
) -> ResourceTarget | PendingServers | Denial:
    """Resolve a URI to the server that lists it, else to one with a matching template.

    Of several servers, the smallest id is chosen. If the server is given, the URI need not be
    listed or match a template; it only has to pass the server's filter.

    Args:
        reader: For whom.
        uri: A resource's URI, or the text of a template.
        now: The time.
        server_id: Restricts the search to this server; empty for any.
    """
    return _find_for(state, reader, partial(_find_resource, state, reader, uri, now, server_id))


def _find_resource(
    state: Coordinator, reader: Reader, uri: str, now: Moment, server_id: str, view: View
) -> ResourceTarget | PendingServers | Denial:
    if server_id:
        return _find_at(state, reader, view, uri, now, server_id)
    try:
        target = view.by_uri.get(uri) or _by_template(view, uri)
    except TooMuchEffort:
        return _too_many_templates(uri)
    if target is not None:
        return target
    waiting = _pending(state, reader, view)
    if waiting is not None:
        return waiting
    return _not_found(state, reader, uri, view.by_uri, RESOURCES)


def _find_at(
    state: Coordinator, reader: Reader, view: View, uri: str, now: Moment, server_id: str
) -> ResourceTarget | PendingServers | Denial:
    served = view.servers.get(server_id)
    if served is None:
        return no_server(state, reader, server_id, now)
    key = (server_id, uri)
    listed = view.resources.get(key) or view.templates.get(key)
    if listed is not None:
        return listed
    if len(uri) <= MAX_URI and served.readable.allows(uri):
        return ResourceTarget(served, uri)
    known = [resource.name for resource in served.readable.resources]
    near = alike(uri, known)
    message = f"Server '{server_id}' has no resource {shown(uri, _SHOWN)}."
    message += did_you_mean([shown(name, _SHOWN) for name in near])
    metadata = advice_of(near, f"{RESOURCES.listed_by} {server_id}")
    return Denial(Reason.TOOL_NOT_FOUND, message, metadata=metadata)


def _by_template(view: View, uri: str) -> ResourceTarget | None:
    if len(uri) > MAX_URI:
        return None
    compared = ComparedUri(uri)
    for _, served in sorted(view.servers.items()):
        templates = served.readable.every_template
        if any(compared.matches(template.name) for template in templates) and (
            served.readable.allows(uri)
        ):
            return ResourceTarget(served, uri)
    return None


def _too_many_templates(uri: str) -> Denial:
    message = (
        f"Finding the server of resource {shown(uri, _SHOWN)} would take too long: there are too"
        " many resource templates, or they are too long. Name the server."
    )
    return Denial(Reason.TOOL_NOT_FOUND, message)


def _find_qualified(
    state: Coordinator,
    reader: Reader,
    view: View,
    name: tuple[str, str],
    kind: NamedKind,
    now: Moment,
) -> NamedTarget | PendingServers | Denial:
    server_id, original = name
    served = view.servers.get(server_id)
    if served is None:
        return no_server(state, reader, server_id, now)
    target = view.qualified(server_id, original, kind)
    if target is not None:
        return target
    if original == LOGIN_TOOL and kind is TOOLS and served.spec.part.auth.logs_in:
        # Clients find its workers by this name, to call `mcp_login` there.
        return NamedTarget(served, ExposedName(original, f"{server_id}:{original}"), kind)
    if served.awaits_tenant:  # no worker lists it in the middle of a call
        message = (
            f"Server '{server_id}' lists what it has once tenant '{reader.tenant}' has logged in:"
            f' call {LOGIN_TOOL}({{"serverId": "{server_id}"}}) of {ADMIN_TOOLSET}.'
        )
        metadata = {"server": server_id, "tenant": reader.tenant}
        return Denial(Reason.LOGIN_REQUIRED, message, metadata=metadata)
    qualified = f"{server_id}:{original}"
    if served.awaits_login:  # the worker asks for the login, and knows then whether it has the name
        return NamedTarget(served, ExposedName(original, qualified), kind)
    known = [f"{server_id}:{item.original}" for item in served.names(kind)]
    return _not_found(state, reader, qualified, known, kind)


def _other_server(
    state: Coordinator,
    reader: Reader,
    view: View,
    name: str,
    server_id: str,
    kind: NamedKind,
    now: Moment,
) -> PendingServers | Denial:
    """Return the denial for a qualified name of another server than the given one."""
    served = view.servers.get(server_id)
    if served is None:
        return no_server(state, reader, server_id, now)
    known = [f"{server_id}:{item.original}" for item in served.callable(kind)]
    return _not_found(state, reader, name, known, kind)


def _not_found(
    state: Coordinator, reader: Reader, name: str, known: Collection[str], kind: ItemKind
) -> Denial:
    is_uri = kind is RESOURCES
    near = alike(name, known)
    message = f"There is no {kind.noun} {shown(name, _SHOWN)}."
    message += did_you_mean([shown(name, _SHOWN) for name in near])
    if is_uri:
        message += " To read a URI that no server lists, name the server."
    listed = state.visible.view(reader.tenant, reader.agent).servers
    failed = [
        server_id
        for server_id, key in state.servers.variants_of(reader.tenant).items()
        if key in state.servers.failures
        and state.servers.may_see(key, reader.tenant, reader.agent)
        and (server_id not in listed or listed[server_id].awaits_login)
    ]
    if failed and (is_uri or split_qualified(name) is None):
        # A prefix of the name is likely a server's id.
        likely = [server_id for server_id in failed if server_id in name]
        likely += [server_id for server_id in failed if server_id not in name]
        more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        named = f"{', '.join(likely[:_NAMED])}{more}"
        message += f" Servers that have not started, or need a login, may have it: {named}."
    return Denial(Reason.TOOL_NOT_FOUND, message, metadata=advice_of(near, kind.listed_by))
