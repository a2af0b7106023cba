"""From a server's own names of tools and prompts to those that callers see. Pure.

Models' APIs accept few characters, servers list any (design.md#configuration).
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from leaseway.spec.model import Transform, transformed
from leaseway.wire.names import MAX_NAME, is_valid_name

_DIGEST: Final = 8
"""Characters of a digest in a name."""
_OTHERS: Final = re.compile(r"[^\x00-\x7f]+|[^a-zA-Z0-9_-]")


def exposed_names(
    originals: Iterable[str], transforms: Sequence[Transform], taken: Collection[str] = ()
) -> dict[str, str]:
    """Return the exposed name of each original one; it is empty if transforms leave nothing of it.

    A name that had to be altered gives way: if another tool has it, or one of `taken`, it ends with
    a digest. Of several that would become the same, each does, so that none has the name that
    another had before.

    Args:
        originals: The names of a server's tools, or of its prompts.
        transforms: The server's transforms.
        taken: Names that none of these may get by being altered.
    """
    written = {original: transformed(original, transforms) for original in originals}
    names = {original: exposed_name(original, transforms) for original in written}
    altered = [original for original, name in written.items() if names[original] != name]
    if altered:
        wanted = Counter(names.values())
        for original in altered:
            name = names[original]
            if wanted[name] > 1 or name in taken:
                names[original] = _with_digest(name, MAX_NAME, original)
    return names


def exposed_name(original: str, transforms: Sequence[Transform]) -> str:
    """Return the name that a tool or prompt has if no other wants it.

    A function of the two alone, so that a name stays the same whatever else the server lists. It
    is valid unless the transforms leave nothing of it.
    """
    name = transformed(original, transforms)
    if is_valid_name(name) or not name:
        return name
    if name.isascii():
        return shortened(_OTHERS.sub("_", name), MAX_NAME, original)
    # What is left of other scripts says too little to tell two names apart.
    letters = (char for char in unicodedata.normalize("NFKD", name) if not _is_accent(char))
    return _with_digest(_OTHERS.sub("_", "".join(letters)), MAX_NAME, original)


def shortened(name: str, longest: int, identity: str = "") -> str:
    """Return a name cut to a length; a digest keeps it unique and the same each time.

    Args:
        longest: The limit of its characters.
        identity: What the digest is of; empty for the name itself.
    """
    return name if len(name) <= longest else _with_digest(name, longest, identity or name)


def _with_digest(name: str, longest: int, identity: str) -> str:
    digest = hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST]
    return f"{name[: longest - _DIGEST - 1]}_{digest}"


def _is_accent(char: str) -> bool:
    return unicodedata.combining(char) != 0
