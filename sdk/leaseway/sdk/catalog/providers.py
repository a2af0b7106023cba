"""Conversion of tools to the formats of model providers. Pure: inputs are never changed.

Nothing is narrowed silently: a schema is passed on as the server wrote it, but for what providers
refuse all tools of a request for: parts that JSON Schema 2020-12 does not have (`model_parts`) and,
for OpenAI and Anthropic, choices at its root, which become plain properties. A tool that a
provider's format cannot express is reported as a `ProjectionProblem`. Other rejections by the
provider can be reported with `AsyncClient.report_refusal`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from leaseway.sdk.catalog.tools import Tool
from leaseway.sdk.validation import check_text
from leaseway.wire.listing.model_parts import with_accepted_parts

ProjectionReason = Literal[
    "NAME_REFUSED", "NAME_TAKEN", "SCHEMA_NOT_OBJECT", "ARGUMENT_REFUSED", "TOO_MANY_TOOLS"
]

_MAX_ERROR_TEXT: Final = 2_000
"""Characters of a provider's error in a report."""
_MAX_REPORTED: Final = 20
"""Tools that a report names."""


@dataclass(frozen=True)
class ProjectionProblem:
    """Why a tool is missing in the definitions for a provider.

    Attributes:
        provider: The provider.
        tool: The name of the tool.
        reason: `NAME_REFUSED`, `NAME_TAKEN`, `SCHEMA_NOT_OBJECT`, `ARGUMENT_REFUSED` or
            `TOO_MANY_TOOLS`.
        message: What is wrong and what to do, in sentences.
    """

    provider: str
    tool: str
    reason: ProjectionReason
    message: str


def _to_openai_responses(tool: Tool) -> dict[str, Any]:
    # Only in this format `strict` is true by default, which would reject most schemas.
    return {"type": "function", **Tool.to_openai(tool)["function"], "strict": False}


def _to_gemini(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": deepcopy(with_accepted_parts(tool.input_schema)),
    }


class _Provider(NamedTuple):
    convert: Callable[[Tool], dict[str, Any]]
    name_pattern: str
    max_tools: int | None = None
    checks_arguments: bool = False


_WORD: Final = r"[a-zA-Z0-9_-]{1,64}"
_PROVIDERS: Final[Mapping[str, _Provider]] = {
    "anthropic": _Provider(Tool.to_anthropic, _WORD, checks_arguments=True),
    "gemini": _Provider(_to_gemini, r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}"),
    "openai": _Provider(Tool.to_openai, _WORD, max_tools=128),
    "openai-responses": _Provider(_to_openai_responses, _WORD, max_tools=128),
}


def project_tools(
    provider: str, tools: Iterable[Tool]
) -> tuple[list[dict[str, Any]], list[ProjectionProblem]]:
    """Convert tools to a provider's format, and report the tools that cannot be converted.

    The same tools give the same result, in their order.

    Args:
        provider: `openai` (chat completions), `openai-responses`, `anthropic`, or `gemini` (the
            entries of a tool's `functionDeclarations`).
        tools: The tools; of too many the first ones are used.

    Returns:
        The provider's definitions, and a problem for each tool without one.

    Raises:
        ValueError: The provider is unknown.
        TypeError: One of the tools is not a tool.
    """
    target = _find_provider(provider)
    definitions: dict[str, dict[str, Any]] = {}
    problems: list[ProjectionProblem] = []
    for tool in tools:
        if not hasattr(tool, "input_schema"):
            raise TypeError(
                "tools are Tools, as list_tools returns them; one is of type "
                f"{type(tool).__name__}."
            )
        problem = _find_problem(target, tool, definitions)
        if problem is None:
            definitions[tool.name] = target.convert(tool)
        else:
            problems.append(ProjectionProblem(provider, tool.name, *problem))
    return list(definitions.values()), problems


def _find_provider(provider: str) -> _Provider:
    target = _PROVIDERS.get(provider)
    if target is None:
        known = ", ".join(f"'{name}'" for name in _PROVIDERS)
        raise ValueError(f"'{provider}' is not a supported provider; use {known}.")
    return target


def _find_problem(
    target: _Provider, tool: Tool, definitions: Mapping[str, object]
) -> tuple[ProjectionReason, str] | None:
    """Return why a tool cannot be converted, or None if it can."""
    subject = f"Tool '{tool.name}' of server '{tool.server_id}' is skipped:"
    if re.fullmatch(target.name_pattern, tool.name) is None:
        return "NAME_REFUSED", (
            f"{subject} its name does not match '{target.name_pattern}', as the provider requires. "
            "Rename it with a transform of its server."
        )
    if tool.name in definitions:
        return "NAME_TAKEN", f"{subject} another tool of this request has the same name."
    if tool.input_schema.get("type") != "object":
        return "SCHEMA_NOT_OBJECT", (
            f'{subject} its input schema has no "type": "object", which the provider needs to '
            "name arguments. Fix it in the server."
        )
    if target.checks_arguments and (names := tool.for_models.names):
        refused = next(iter(names.values()))
        return "ARGUMENT_REFUSED", (
            f"{subject} the provider refuses the name of its argument '{refused[:80]}': it accepts "
            "1 to 64 letters, digits, '_', '.' and '-'. Offer it by an integration or over MCP, "
            "which rename the argument, or rename it in the server."
        )
    if target.max_tools is not None and len(definitions) >= target.max_tools:
        return "TOO_MANY_TOOLS", (
            f"{subject} the provider accepts at most {target.max_tools} tools in a request, and "
            "that many come before it. Offer fewer servers, or filter their tools."
        )
    return None


class _NamedTool(NamedTuple):
    name: str
    server_id: str = ""  # empty if unknown


def _named(offer: Tool | Mapping[str, Any]) -> _NamedTool:
    """Return the name of a tool, or of a definition that `project_tools` returned."""
    if not isinstance(offer, Mapping):
        if hasattr(offer, "input_schema"):
            return _NamedTool(offer.name, offer.server_id)
        raise TypeError(
            "offered are Tools, or definitions that project_tools returned; one is of type "
            f"{type(offer).__name__}."
        )
    function = offer.get("function")
    name = (function if isinstance(function, Mapping) else offer).get("name")
    if not isinstance(name, str):
        raise TypeError("One of the definitions in offered has no name; see project_tools.")
    return _NamedTool(name)


def named_tools(text: str, offered: Sequence[Tool | Mapping[str, Any]]) -> list[_NamedTool]:
    """Return the tools that a provider's error mentions.

    An error mentions a tool by its name as a word, or by its index in the request (`tools[3]`,
    `tools.3`).

    Args:
        text: The provider's error.
        offered: The tools of the request, in order.
    """
    indexes = {int(index) for index in re.findall(r"\btools(?:\.|\[)(\d{1,6})\b", text)}
    words = set(re.findall(r"[a-zA-Z0-9_-]+", text))
    tools = [_named(offer) for offer in offered]
    return [tool for index, tool in enumerate(tools) if index in indexes or tool.name in words]


@dataclass(frozen=True)
class ProviderRefusal:
    """A provider's rejection of tools, as it is reported to operators.

    Attributes:
        message: Provider, session, tools and the provider's own words, in sentences.
        server_id: The server of all named tools, or empty if there are several.
        subject: Identifies the rejection: the provider and the first tool.
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
    """Build the report of a provider's rejection.

    Args:
        provider: The provider.
        text: The provider's error.
        tool: The rejected tool; None searches the text for names.
        offered: The tools of the request, in order.
        session: The session of the request, or empty.

    Raises:
        ValueError: The provider is unknown.
        TypeError: A parameter has the wrong type.
    """
    _find_provider(provider)
    check_text("error_text", text)
    check_text("session", session)
    if tool is None:
        tools = named_tools(text, offered)
    elif isinstance(tool, str):
        tools = [named for named in map(_named, offered) if named.name == tool]
    else:
        tools = [_named(tool)]
    names = [tool] if isinstance(tool, str) else [named.name for named in tools]
    servers = {named.server_id for named in tools}
    return ProviderRefusal(
        message=_refusal_message(provider, text, names, session),
        server_id=servers.pop() if len(servers) == 1 else "",
        subject=f"{provider}:{names[0]}" if names else provider,
    )


def _refusal_message(provider: str, text: str, names: Sequence[str], session: str) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:_MAX_REPORTED])
    if len(names) > _MAX_REPORTED:
        listed += f" and {len(names) - _MAX_REPORTED} more"
    about = f" with {'tool' if len(names) == 1 else 'tools'} {listed}" if names else ""
    where = f" in session '{session}'" if session else ""
    error = " ".join(text.split())
    if len(error) > _MAX_ERROR_TEXT:
        error = error[:_MAX_ERROR_TEXT] + "…"
    return (
        f"Provider '{provider}' refused a request{where}{about}, and would refuse it again. Rename "
        f"or filter the tool, or fix its schema. The provider said: {error}"
    )
