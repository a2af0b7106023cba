"""`get_env`: variables of the kit's environment, without those that look like credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from leaseway.server import Tool, ToolError, ToolResult
from leaseway.wire.secrets.secret_names import looks_secret

_OWN: Final = ("LEASEWAY_", "_LEASEWAY_")
_SECRET_VALUE: Final = re.compile(
    r"://[^/\s]*@"  # a user, and mostly a password, in a URL
    r"|-----BEGIN"
    r"|(^|[^A-Za-z0-9])(gh[pousr]_|github_pat_|sk-|xox[abp]-|AKIA|eyJ[A-Za-z0-9_-]{10})"
    r"|\b(Bearer|Basic) [A-Za-z0-9+/=._-]{8}"
    r"|\b(password|passwd|pwd|secret|token|accountkey|sharedaccesskey)\s*=",
    re.IGNORECASE,
)


def get_env(environment: Mapping[str, str]) -> Tool:
    shown = {
        name: text
        for name, text in environment.items()
        if not (looks_secret(name) or name.startswith(_OWN) or _SECRET_VALUE.search(text))
    }

    def run(arguments: Mapping[str, Any]) -> ToolResult:
        name = arguments.get("name")
        if name is None:
            names = sorted(shown)
            return ToolResult("\n".join(names), {"names": names})
        if name not in shown:
            raise ToolError(
                f"The variable {name!r:.200} is not set, or hidden because it looks like a"
                " credential; call get_env without a name for those that can be read."
            )
        return ToolResult(shown[name], {"value": shown[name]})

    return Tool(
        name="get_env",
        title="Environment variable",
        description="Tells a variable of the server's environment, or the names of all that can"
        " be read. What looks like a credential is hidden.",
        input_schema={
            "type": "object",
            "properties": {
                "name": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 256,
                    "description": "Default: tell the names.",
                }
            },
            "additionalProperties": False,
        },
        annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
        function=run,
    )
