"""The prompts and resources of a variant, and the check of requests for them.

Compiled at each registry commit. Requests other than tool calls are rare, so their params are
parsed and encoded anew: the server gets one line with exactly the values that were checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from leaseway.data_plane.core.tools.arguments import parse_arguments
from leaseway.spec.contracts import same_items
from leaseway.spec.filters.uris import ALL_URIS, UriFilter, readings
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ROOTS_CHANGED
from leaseway.wire.names import split_qualified
from leaseway.wire.text.suggestions import alike

SUBSCRIBE: Final = "resources/subscribe"
"""The only request that lasts until it is cancelled."""

_EXPRESSION: Final = re.compile(r"\{[+#./;?&]?(\w+)\*?\}")
"""A variable of a URI template."""

_MAX_SHOWN: Final = 300
"""Characters of a URI in messages."""


class Absent(NamedTuple):
    """Exposed prompts and resources that an instance does not list, by the server's own names.

    Attributes:
        prompts: Names.
        resources: URIs.
        templates: URI templates.
    """

    prompts: tuple[str, ...]
    resources: tuple[str, ...]
    templates: tuple[str, ...]

    def still_in(self, later: Absent) -> Absent:
        """Return what was not listed at first, and is not listed later."""
        return Absent(*(_common(*names) for names in zip(self, later, strict=True)))


@dataclass(frozen=True)
class CompiledPromptsResources:
    """The prompts and resources of a variant.

    Attributes:
        prompts: The exposed prompts: names after transforms by the server's names.
        recorded_prompts: Every listed definition, in the server's order; so for the next two.
        uris: The filter for URIs that callers may use, listed or not.
    """

    prompts: Mapping[str, str] = field(default_factory=dict)
    recorded_prompts: tuple[bytes, ...] = ()
    recorded_resources: tuple[bytes, ...] = ()
    recorded_templates: tuple[bytes, ...] = ()
    uris: UriFilter = ALL_URIS

    @property
    def has_any(self) -> bool:
        """Whether the server has listed any of them."""
        return bool(self.recorded_prompts or self.recorded_resources or self.recorded_templates)

    def lists_other(
        self, prompts: Iterable[bytes], resources: Iterable[bytes], templates: Iterable[bytes]
    ) -> bool:
        recorded = (self.recorded_prompts, self.recorded_resources, self.recorded_templates)
        return recorded != (tuple(prompts), tuple(resources), tuple(templates))

    def serves_other(
        self, prompts: Iterable[bytes], resources: Iterable[bytes], templates: Iterable[bytes]
    ) -> bool:
        """Return whether lists differ from the recorded ones in more than texts and order."""
        recorded = (self.recorded_prompts, self.recorded_resources, self.recorded_templates)
        listed = (tuple(prompts), tuple(resources), tuple(templates))
        return recorded != listed and any(
            not same_items(*pair) for pair in zip(recorded, listed, strict=True)
        )

    def absent(
        self, prompts: Iterable[bytes], resources: Iterable[bytes], templates: Iterable[bytes]
    ) -> Absent:
        """Return what callers may use and these lists lack, within `MAX_ABSENT(_BYTES)` each."""
        resource, template = (
            _missing(recorded, listed, member)
            for recorded, listed, member in (
                (self.recorded_resources, resources, "uri"),
                (self.recorded_templates, templates, "uriTemplate"),
            )
        )
        missing = _missing(self.recorded_prompts, prompts, "name")
        return Absent(
            bounded_names(name for name in missing if name in self.prompts),
            bounded_names(uri for uri in resource if self.uris.allows(uri)),
            bounded_names(uri for uri in template if self.uris.allows(uri)),
        )


NOTHING_BUT_TOOLS: Final = CompiledPromptsResources()


def _missing(recorded: Iterable[bytes], listed: Iterable[bytes], member: str) -> list[str]:
    """Return the names of recorded definitions that are in no listed one."""
    same = frozenset(listed)
    others = [definition for definition in recorded if definition not in same]
    if not others:
        return []
    names = definitions_by_name(same, member)
    return [name for name in definitions_by_name(others, member) if name not in names]


def definitions_by_name(definitions: Iterable[bytes], member: str) -> dict[str, bytes]:
    """Return definitions by the member that identifies them; one that cannot be read has none."""
    found = {_named(definition, member): definition for definition in definitions}
    found.pop("", None)
    return found


def _named(definition: bytes, member: str) -> str:
    try:
        name = msgspec.json.decode(definition).get(member)
    except (msgspec.DecodeError, AttributeError, RecursionError):
        return ""
    return name if isinstance(name, str) else ""


def _common(names: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    in_both = frozenset(others)
    return tuple(name for name in names if name in in_both)


def bounded_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first names, as many as a gateway is told."""
    kept: list[str] = []
    size = 0
    for name in names:
        size += len(msgspec.json.encode(name))
        if len(kept) == bounds.MAX_ABSENT or size > bounds.MAX_ABSENT_BYTES:
            break
        kept.append(name)
    return tuple(kept)


def compile_prompts(
    recorded: Iterable[bytes], exposed: Iterable[tuple[str, str, bool]]
) -> dict[str, str]:
    """Return the exposed prompts: names after transforms by the server's names.

    Args:
        recorded: Every prompt that the server listed.
        exposed: (the server's name, the name after transforms, whether another server has it).

    Raises:
        ValueError: A definition is not a JSON object with a name, or an exposed prompt was never
            recorded; the message says which.
    """
    names = {_prompt_name(definition) for definition in recorded}
    prompts: dict[str, str] = {}
    for original, name, _skipped in exposed:
        if original not in names:
            raise ValueError(f"It exposes prompt {original[:64]}, which is not among its prompts.")
        prompts[original] = name  # even if another server has this name: the own one still works
    return prompts


def _prompt_name(definition: bytes) -> str:
    try:
        name = msgspec.json.decode(definition).get("name")
    except (msgspec.DecodeError, AttributeError, RecursionError) as error:
        raise ValueError("A recorded prompt is not a JSON object.") from error
    if not isinstance(name, str):
        raise ValueError("A recorded prompt has no name.")
    return name


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """An admitted request.

    Attributes:
        method: The MCP method.
        name: The name of its prompt, or its URI.
        params: Its params on one line, without `_meta`.
        meta: The caller's `_meta`, or None.
        parsed: The params, parsed.
    """

    method: str
    name: str
    params: bytes
    meta: dict[str, object] | None = None
    parsed: Mapping[str, Any] = field(default_factory=dict)


class Judged(NamedTuple):
    """What rules and permissions judge of a request.

    Attributes:
        arguments: The variable `args` of rules: the prompt's arguments, or the params.
        names: The values of `tool` that it stands for: the name of the prompt, or the URI as
            written and as servers may read it; none if readers of the URI disagree.
        uri: The URI; of a completion for a resource template, the template with the values that
            are known. Empty for a prompt.
        others: What else of its params reaches the server. Permissions judge it, rules do not.
    """

    arguments: Mapping[str, Any]
    names: tuple[str, ...]
    uri: str = ""
    others: Mapping[str, Any] = {}


def judged_parts(request: AdmittedRequest) -> Judged:
    """Return what rules and permissions judge of a request."""
    return _METHODS[request.method].judge(request)


def _judge_prompt(request: AdmittedRequest) -> Judged:
    params = request.parsed
    others = {"request": request.meta, **_without(params, "name", "arguments")}
    return Judged(params.get("arguments") or {}, (request.name,), others=others)


def _judge_resource(request: AdmittedRequest) -> Judged:
    uri = request.name
    return Judged(request.parsed, readings(uri), uri, {"request": request.meta})


def _judge_notice(request: AdmittedRequest) -> Judged:
    return Judged(request.parsed, (), others={"request": request.meta})


def _judge_completion(request: AdmittedRequest) -> Judged:
    params = request.parsed
    argument = params["argument"]
    context = params.get("context") or {}
    known = context.get("arguments") or {}
    values = {**known, argument["name"]: argument["value"]}
    others: dict[str, Any] = {"request": request.meta}
    others |= _without(params, "ref", "argument", "context")
    others |= {"argument": _without(argument, "value"), "ref": _without(params["ref"], "uri")}
    others |= {"context": _without(context, "arguments")}
    if params["ref"]["type"] == "ref/prompt":
        return Judged(values, (request.name,), others=others)
    filled = _EXPRESSION.sub(lambda found: str(values.get(found[1], found[0])), request.name)
    uri = filled.partition("{")[0]
    names = readings(uri) and tuple(dict.fromkeys((request.name, *readings(uri))))
    return Judged({"values": list(values.values())}, names, uri, others)


def _without(members: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name not in names}


def admit(
    prompts_resources: CompiledPromptsResources, server_id: str, method: str, params: bytes
) -> AdmittedRequest:
    """Check a request and return it as the server should get it.

    Args:
        prompts_resources: The server's prompts and resources.
        server_id: The server, for messages.
        method: The MCP method.
        params: The caller's params, a JSON object.

    Raises:
        Fault: INVALID_REQUEST: no such method. INVALID_ARGUMENTS: the params are not those of the
            method. TOOL_NOT_FOUND: callers may not use the prompt or resource, or there is none.
    """
    known = _METHODS.get(method)
    if known is None:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"There is no method {method[:64]} to call; use one of {', '.join(_METHODS)}, or none "
            "for a tool.",
        )
    parsed = parse_arguments(params or b"{}")
    meta = parsed.pop("_meta", None)
    name = known.read(prompts_resources, server_id, parsed)
    meta = meta if isinstance(meta, dict) else None
    return AdmittedRequest(
        method=method, name=name, params=msgspec.json.encode(parsed), meta=meta, parsed=parsed
    )


def has_only_tools(server_id: str) -> Fault:
    """Return the fault of a request for prompts or resources to a server with only tools."""
    return Fault(
        Reason.TOOL_NOT_FOUND,
        f"{server_id} has no prompt and no resource, only tools.",
    )


def _read_prompt(
    prompts_resources: CompiledPromptsResources, server_id: str, params: Mapping[str, Any]
) -> str:
    _check_object(params, "arguments", "arguments")
    return _prompt(prompts_resources, server_id, params.get("name"), "name")


def _read_resource(
    prompts_resources: CompiledPromptsResources, server_id: str, params: Mapping[str, Any]
) -> str:
    return _uri(prompts_resources, server_id, params.get("uri"), "uri")


def _read_completion(
    prompts_resources: CompiledPromptsResources, server_id: str, params: Mapping[str, Any]
) -> str:
    argument = params.get("argument")
    if not isinstance(argument, dict) or not all(
        isinstance(argument.get(key), str) for key in ("name", "value")
    ):
        raise _invalid("argument", "is an object with a name and a value")
    context = _check_object(params, "context", "context")
    known = _check_object(context, "arguments", "context.arguments")
    # The value of an argument that is being completed is not known yet: servers get one of them.
    known.pop(argument["name"], None)
    ref = params.get("ref")
    kind = ref.get("type") if isinstance(ref, dict) else None
    if isinstance(ref, dict) and kind == "ref/prompt":
        return _prompt(prompts_resources, server_id, ref.get("name"), "ref.name")
    if isinstance(ref, dict) and kind == "ref/resource":
        return _uri(prompts_resources, server_id, ref.get("uri"), "ref.uri")
    raise _invalid("ref", "is an object whose type is ref/prompt or ref/resource")


def _read_nothing(
    _prompts_resources: CompiledPromptsResources, _server_id: str, params: Mapping[str, Any]
) -> str:
    if params:
        raise _invalid(min(params), "is none of its params")
    return ""


def _check_object(params: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return a member that may be absent or null; an empty object if it is."""
    value = params.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(where, "is an object")
    return value


def _prompt(
    prompts_resources: CompiledPromptsResources, server_id: str, name: object, where: str
) -> str:
    if not isinstance(name, str):
        raise _invalid(where, "is the name of a prompt")
    if name not in prompts_resources.prompts:
        near = alike(name[:64], prompts_resources.prompts)
        hint = f" Did you mean {', '.join(near)}?" if near else " List the prompts to see its own."
        raise Fault(
            Reason.TOOL_NOT_FOUND,
            f"Server {server_id} has no prompt {name[:64]}.{hint}",
            metadata={"nearest": ",".join(near)} if near else {},
        )
    return name


def _uri(
    prompts_resources: CompiledPromptsResources, server_id: str, uri: object, where: str
) -> str:
    if not isinstance(uri, str) or not 0 < len(uri) <= bounds.MAX_URI or not uri.isprintable():
        raise _invalid(where, f"is a URI of at most {bounds.MAX_URI} printable characters")
    if not prompts_resources.uris.allows(uri):
        raise Fault(
            Reason.TOOL_NOT_FOUND,
            f"Server {server_id} has no resource {uri[:_MAX_SHOWN]}: its `resources` filter "
            "excludes it.",
        )
    return uri


def has_no_resource(server_id: str, uri: str) -> Fault:
    """Return the fault of a URI that a leased server does not list, by itself or by a template."""
    return Fault(
        Reason.TOOL_NOT_FOUND,
        f"Server {server_id} lists no resource {uri[:_MAX_SHOWN]}, and no template of it.",
    )


def find_prompt(prompts_resources: CompiledPromptsResources, server_id: str, name: str) -> str:
    """Return the server's own name of a prompt.

    Args:
        prompts_resources: The server's prompts.
        server_id: The server.
        name: The prompt's exposed or qualified name.

    Raises:
        Fault: TOOL_NOT_FOUND, with the nearest names.
    """
    server, original = split_qualified(name) or ("", "")
    if server == server_id and original in prompts_resources.prompts:
        return original
    for original, exposed in prompts_resources.prompts.items():
        if exposed == name:
            return original
    return _prompt(prompts_resources, server_id, name, "name")


def _invalid(path: str, rule: str) -> Fault:
    return Fault(
        Reason.INVALID_ARGUMENTS,
        f"The params do not fit the method: {path} {rule}.",
        violations=((path, rule),),
    )


class _Method(NamedTuple):
    """What a worker does with the params of one method.

    Attributes:
        read: Checks them and returns the name of the prompt or the URI that they are about.
        judge: Returns what rules and permissions judge of them.
    """

    read: Callable[[CompiledPromptsResources, str, Mapping[str, Any]], str]
    judge: Callable[[AdmittedRequest], Judged]


_METHODS: Final[Mapping[str, _Method]] = {
    "prompts/get": _Method(_read_prompt, _judge_prompt),
    "resources/read": _Method(_read_resource, _judge_resource),
    "completion/complete": _Method(_read_completion, _judge_completion),
    SUBSCRIBE: _Method(_read_resource, _judge_resource),
    ROOTS_CHANGED: _Method(_read_nothing, _judge_notice),
}
METHODS: Final = frozenset(_METHODS)
"""The methods of calls other than `tools/call`."""
