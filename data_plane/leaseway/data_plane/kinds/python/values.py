"""What a Python class gets of its entry."""

from __future__ import annotations

import json
import sys
from typing import Final

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.python.modules import read_code
from leaseway.data_plane.references.resolver import Resolver
from leaseway.spec.kinds.python import PythonPart
from leaseway.spec.references import Value
from leaseway.spec.replaced import walk_json
from leaseway.wire.secrets.secret_names import looks_secret

_MAX_CONFIG: Final = 120 << 10
"""Bytes; a process accepts no variable over 128 KiB."""
CONFIG_VARIABLE: Final = "LEASEWAY_SERVER_CONFIG"
"""The variable that `leaseway.server` reads a class's config from."""


def values_of(part: PythonPart, resolver: Resolver) -> ResolvedValues:
    """Return the command that runs a class, and its config."""
    code = read_code(part, resolver.known)
    return ResolvedValues(
        command=sys.executable,
        # -P: a module in the worker's folder must not shadow a package of ours.
        args=("-P", "-m", "leaseway.server", part.module, part.class_name),
        env={**resolver.values("env", part.env), **_config(part, resolver)},
        code=code.digest,
        modules=code.files,
    )


def _config(part: PythonPart, resolver: Resolver) -> dict[str, str]:
    """Return the variable with the config of a class; process lists do not show it."""
    if not part.config:
        return {}

    def text_of(path: str, value: Value) -> str:
        name = path.rpartition(".")[2].partition("[")[0]
        return resolver.value(f"config{path}", value, looks_secret(name))

    text = json.dumps(walk_json(json.loads(part.config), text_of), ensure_ascii=False)
    if len(text.encode(errors="replace")) > _MAX_CONFIG:
        problem = f"has more than {_MAX_CONFIG} bytes with its references resolved: shorten it"
        resolver.missing.append(("config", problem))
    return {CONFIG_VARIABLE: text}
