"""Writes YAML that readers of 1.1, such as kubectl, and of 1.2, as here, understand alike.

PyYAML leaves a text without quotes that only 1.2 takes for a number, such as `08` and `12e5`, or
only other readers of 1.1 for a truth value: `y` and `n`.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from leaseway.control_plane.config.tree.yaml_tree import CORE_SCHEMA


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, with quotes also for what the core schema of 1.2 takes for no text."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("[yYnN]$"), list("yYnN"))
for _tag, _expression, _first in CORE_SCHEMA:
    _Dumper.add_implicit_resolver(_tag, _expression, _first)


def yaml_text(content: Any) -> str:
    """Return plain values as YAML, mappings in their order."""
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text
