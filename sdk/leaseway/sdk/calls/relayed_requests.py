"""Requests for prompts, resources and completions, as a relay passes them on.

They are those of `requests`, with the SDK's errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leaseway.sdk.calls import requests
from leaseway.sdk.calls.requests import McpRequest
from leaseway.sdk.errors import error_from_fault
from leaseway.wire.errors import Fault


def prompt_request(
    name: str, arguments: Mapping[str, str] | None = None, server: str | None = None
) -> McpRequest:
    """Return the request for a prompt.

    Args:
        name: The prompt's name.
        arguments: Its arguments.
        server: The id of its server; None finds the server by the name.

    Raises:
        InvalidRequest: The name is empty or too long.
    """
    return _built(requests.get, name, arguments, server)


def read_request(uri: str, server: str | None = None) -> McpRequest:
    """Return the request to read a resource; raises as `prompt_request`."""
    return _built(requests.read, uri, server)


def prompt_completion(
    name: str,
    argument: str,
    value: str,
    context: Mapping[str, str] | None = None,
    server: str | None = None,
) -> McpRequest:
    """Return the request to complete an argument of a prompt.

    Args:
        name: The prompt's name.
        argument: The argument to complete.
        value: What it begins with.
        context: The values of other arguments.
        server: The id of its server; None finds the server by the name.

    Raises:
        InvalidRequest: The name is empty or too long.
    """
    params = requests.completion_params(argument, value, context)
    return _built(requests.complete_prompt, name, params, server)


def template_completion(
    uri: str,
    argument: str,
    value: str,
    context: Mapping[str, str] | None = None,
    server: str | None = None,
) -> McpRequest:
    """Return the request to complete a variable of a resource template; see `prompt_completion`."""
    params = requests.completion_params(argument, value, context)
    return _built(requests.complete_template, uri, params, server)


def _built(build: Callable[..., McpRequest], *parts: object) -> McpRequest:
    try:
        return build(*parts)
    except Fault as fault:
        raise error_from_fault(fault) from None
