"""Tools in the form that a model's provider takes them. Pure: inputs are never changed.

A schema is passed on as the server wrote it, also where a provider may refuse it: nothing is
narrowed in silence. What cannot be expressed at all for a provider is left out with a
`ProjectionProblem`. A refusal that comes all the same is for `AsyncClient.report_refusal`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from leaseway.sdk.validation import check_text

ProjectionReason = Literal["NAME_REFUSED", "NAME_TAKEN", "SCHEMA_NOT_OBJECT", "TOO_MANY_TOOLS"]

_LONGEST_ERROR: Final = 2_000
"""Characters of a provider's text that a report keeps."""
_MOST_NAMED: Final = 20
"""Tools that a report names."""


class Tool(Protocol):
    """A tool, as far as providers are told of it: `leaseway.sdk.Tool`."""

    @property
    def name(self) -> str:
        """The name that models call it by."""

    @property
    def description(self) -> str:
        """What it is for."""

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""

    @property
    def server_id(self) -> str:
        """The server that it belongs to."""


@dataclass(frozen=True)
class ProjectionProblem:
    """Why a tool is missing from what a provider is sent.

    Attributes:
        provider: The provider, as `project_tools` was asked for it.
        tool: The name of the tool.
        reason: `NAME_REFUSED`, `NAME_TAKEN`, `SCHEMA_NOT_OBJECT` or `TOO_MANY_TOOLS`.
        message: What is wrong and what to do, in sentences.
    """

    provider: str
    tool: str
    reason: ProjectionReason
    message: str


def to_openai(tool: Tool) -> dict[str, Any]:
    """Return a tool as OpenAI's chat completions take it."""
    return {"type": "function", "function": _function(tool)}


def to_anthropic(tool: Tool) -> dict[str, Any]:
    """Return a tool as Anthropic's messages take it."""
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": deepcopy(tool.input_schema),
    }


def _to_openai_responses(tool: Tool) -> dict[str, Any]:
    # Of this form alone `strict` is true unless it is said, and that would refuse most schemas.
    return {"type": "function", **_function(tool), "strict": False}


def _to_gemini(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": deepcopy(tool.input_schema),
    }


def _function(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": deepcopy(tool.input_schema),
    }


@dataclass(frozen=True)
class _Provider:
    form: Callable[[Tool], dict[str, Any]]
    name_rule: str
    most: int | None = None


_WORD: Final = r"[a-zA-Z0-9_-]{1,64}"
_PROVIDERS: Final[Mapping[str, _Provider]] = {
    "anthropic": _Provider(to_anthropic, _WORD),
    "gemini": _Provider(_to_gemini, r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}"),
    "openai": _Provider(to_openai, _WORD, most=128),
    "openai-responses": _Provider(_to_openai_responses, _WORD, most=128),
}


def project_tools(
    provider: str, tools: Iterable[Tool]
) -> tuple[list[dict[str, Any]], list[ProjectionProblem]]:
    """Return tools as a provider takes them, and why others are left out.

    The same tools give the same result, in their order, and are not changed by it.

    Args:
        provider: `openai` (chat completions), `openai-responses`, `anthropic`, or `gemini` (the
            entries of a tool's `functionDeclarations`).
        tools: What to offer; of too many the first ones are taken.

    Returns:
        The provider's definitions, and a problem for each tool that has none.

    Raises:
        ValueError: The provider is not known.
        TypeError: One of the tools is something else.
    """
    target = _target(provider)
    taken: dict[str, dict[str, Any]] = {}
    problems: list[ProjectionProblem] = []
    for tool in tools:
        if not hasattr(tool, "input_schema"):
            raise TypeError(
                "tools are Tools, as list_tools returns them; one is of type "
                f"{type(tool).__name__}."
            )
        found = _trouble(target, tool, taken)
        if found is None:
            taken[tool.name] = target.form(tool)
        else:
            problems.append(ProjectionProblem(provider, tool.name, *found))
    return list(taken.values()), problems


def _target(provider: str) -> _Provider:
    target = _PROVIDERS.get(provider)
    if target is None:
        known = ", ".join(f"'{name}'" for name in _PROVIDERS)
        raise ValueError(f"'{provider}' is no provider that tools can be written for; use {known}.")
    return target


def _trouble(
    target: _Provider, tool: Tool, taken: Mapping[str, object]
) -> tuple[ProjectionReason, str] | None:
    """Say why a provider cannot be sent a tool; None where it can."""
    what = f"Tool '{tool.name}' of server '{tool.server_id}' is left out:"
    if re.fullmatch(target.name_rule, tool.name) is None:
        return "NAME_REFUSED", (
            f"{what} its name does not match '{target.name_rule}', as the provider demands. Rename "
            "it with a transform of its server."
        )
    if tool.name in taken:
        return "NAME_TAKEN", f"{what} another tool of this request has the same name."
    if tool.input_schema.get("type") != "object":
        return "SCHEMA_NOT_OBJECT", (
            f'{what} its input schema does not say "type": "object", which the provider needs '
            "to name arguments. Mend it in the server."
        )
    if target.most is not None and len(taken) >= target.most:
        return "TOO_MANY_TOOLS", (
            f"{what} the provider takes at most {target.most} tools in a request and has that "
            "many before it. Offer fewer servers, or filter their tools."
        )
    return None


@dataclass(frozen=True)
class _Named:
    """A tool by its name, and its server where that is known."""

    name: str
    server_id: str = ""


def _named(offer: Tool | Mapping[str, Any]) -> _Named:
    """Return the name of a tool, or of what `project_tools` made of it."""
    if not isinstance(offer, Mapping):
        if hasattr(offer, "input_schema"):
            return _Named(offer.name, offer.server_id)
        raise TypeError(
            "offered are Tools, or what project_tools made of them; one is of type "
            f"{type(offer).__name__}."
        )
    function = offer.get("function")
    name = (function if isinstance(function, Mapping) else offer).get("name")
    if not isinstance(name, str):
        raise TypeError("One of the definitions in offered has no name; see project_tools.")
    return _Named(name)


def named_tools(text: str, offered: Sequence[Tool | Mapping[str, Any]]) -> list[_Named]:
    """Return the tools that a provider's error is about, as far as its text tells.

    It tells by a tool's name as a word of its own, or by the place in the request (`tools[3]`,
    `tools.3`).

    Args:
        text: The provider's error.
        offered: What the request offered, in its order.
    """
    places = {int(place) for place in re.findall(r"\btools(?:\.|\[)(\d{1,6})\b", text)}
    words = set(re.findall(r"[a-zA-Z0-9_-]+", text))
    tools = [_named(offer) for offer in offered]
    return [tool for place, tool in enumerate(tools) if place in places or tool.name in words]


@dataclass(frozen=True)
class ProviderRefusal:
    """What operators read of a provider's refusal.

    Attributes:
        message: Provider, session, tools and the provider's own words, in sentences.
        server_id: The one server that offers all tools named, or empty.
        subject: What tells refusals apart: the provider and the first tool.
    """

    message: str
    server_id: str
    subject: str


def describe_refusal(
    provider: str,
    text: str,
    tool: Tool | Mapping[str, Any] | str | None,
    offered: Sequence[Tool | Mapping[str, Any]],
    session: str,
) -> ProviderRefusal:
    """Return what to report of a provider's refusal.

    Args:
        provider: Who refused.
        text: The provider's error.
        tool: What it refused, where the caller knows; None has the text searched.
        offered: What the request offered, in its order.
        session: The session that the request was made for, or empty.

    Raises:
        ValueError: The provider is not known.
        TypeError: A parameter is of the wrong type.
    """
    _target(provider)
    check_text("error_text", text)
    check_text("session", session)
    if tool is None:
        about = named_tools(text, offered)
    elif isinstance(tool, str):
        about = [one for one in map(_named, offered) if one.name == tool]
    else:
        about = [_named(tool)]
    names = [tool] if isinstance(tool, str) else [one.name for one in about]
    servers = {one.server_id for one in about}
    return ProviderRefusal(
        message=_refusal_message(provider, text, names, session),
        server_id=servers.pop() if len(servers) == 1 else "",
        subject=f"{provider}:{names[0]}" if names else provider,
    )


def _refusal_message(provider: str, text: str, names: Sequence[str], session: str) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        listed += f" and {len(names) - _MOST_NAMED} more"
    about = f" with {'tool' if len(names) == 1 else 'tools'} {listed}" if names else ""
    where = f" in session '{session}'" if session else ""
    said = " ".join(text.split())
    if len(said) > _LONGEST_ERROR:
        said = said[:_LONGEST_ERROR] + "…"
    return (
        f"Provider '{provider}' refused a request{where}{about}, and would refuse it again. Rename "
        f"or filter the tool, or mend its schema. The provider said: {said}"
    )
