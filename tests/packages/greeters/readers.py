"""How the control plane reads keys of greeters that no shape describes; only it imports this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leaseway.control_plane.config.schema.issues import Where, quoted
from leaseway.control_plane.config.schema.values import BadValue, Reader, plain_text, reader
from leaseway.control_plane.config.tree.yaml_tree import Tree

_TEXT: Final = plain_text(longest=10)


@reader(_TEXT.schema)
def _ending(node: Tree, where: Where) -> str:
    text = _TEXT.read(node, where)
    if text.isalnum():
        raise BadValue(f"{quoted(where.key)} must be punctuation, such as '!'.")
    return text


READERS: Final[Mapping[str, Reader[Any]]] = {"ending": _ending}
