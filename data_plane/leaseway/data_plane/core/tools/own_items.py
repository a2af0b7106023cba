"""The prompts, resources and templates in which one instance differs from the recorded ones. Pure.

As with tools (`own_tools`), what the instance of a lease lists is the contract of this lease
(design.md#tools-of-a-lease).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from leaseway.data_plane.core.ports import ListedPromptsResources
from leaseway.data_plane.core.tools.own_tools import OwnTools, name_fault, shown
from leaseway.data_plane.core.tools.prompts_resources import (
    CompiledPromptsResources,
    definitions_by_name,
)
from leaseway.data_plane.core.tools.toolset import CompiledToolset
from leaseway.spec.contracts import same_items
from leaseway.spec.exposed_names import exposed_names
from leaseway.spec.filters.uri_templates import ComparedUri, TooMuchEffort
from leaseway.spec.filters.uris import UriFilter
from leaseway.spec.model import NameRules
from leaseway.wire import bounds
from leaseway.wire.names import is_valid_original_name


@dataclass(frozen=True)
class OwnItems:
    """What one list of an instance has otherwise.

    Attributes:
        changed: The exposed name and the definition of what it adds or defines otherwise, by the
            server's own name or URI, sorted.
        absent: The server's names of what is recorded and exposed, and what it does not list.
        digest: Identifies the difference; empty without one.
        size: The bytes of the changed definitions.
    """

    changed: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    digest: str = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        size = sum(len(definition) for _, definition in self.changed.values())
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "digest", self._digest() if self.changed or self.absent else "")

    def seen_by(self, may_see: Callable[[str], bool]) -> OwnItems:
        """Return what a caller sees who may know of some of it only.

        Args:
            may_see: Whether the caller may know of a name or URI.
        """
        changed = {name: item for name, item in self.changed.items() if may_see(name)}
        absent = tuple(filter(may_see, self.absent))
        if len(changed) == len(self.changed) and len(absent) == len(self.absent):
            return self
        return OwnItems(changed, absent)

    def _digest(self) -> str:
        state = hashlib.sha256()
        for name, definition in self.changed.values():
            for part in (name.encode(), definition):
                state.update(len(part).to_bytes(8, "big"))
                state.update(part)
        state.update(repr(self.absent).encode())
        return state.hexdigest()[:32]


NO_ITEMS: Final = OwnItems()


@dataclass(frozen=True)
class OwnPromptsResources:
    """The prompts, resources and templates in which an instance differs.

    Attributes:
        compiled: What requests of its lease are checked by.
        prompts: Its own prompts.
        resources: Its own resources, by URI.
        templates: Its own templates, by their text.
        skipped: A part of a sentence for each that it adds and that is not exposed.
        digest: Identifies all of it; empty if callers see no difference.
    """

    compiled: CompiledPromptsResources
    prompts: OwnItems = NO_ITEMS
    resources: OwnItems = NO_ITEMS
    templates: OwnItems = NO_ITEMS
    skipped: tuple[str, ...] = ()
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of(self.prompts, self.resources, self.templates))

    @property
    def size(self) -> int:
        """The bytes of the changed definitions."""
        return self.prompts.size + self.resources.size + self.templates.size

    @property
    def resources_digest(self) -> str:
        """Identifies the resources and templates, of whose changes MCP tells together."""
        return digest_of(self.resources, self.templates)

    def seen_by(self, may_read: Callable[[str], bool]) -> OwnPromptsResources:
        """Return what a caller sees who may know of some URIs only.

        Args:
            may_read: Whether the caller may know of a URI.
        """
        return replace(
            self,
            resources=self.resources.seen_by(may_read),
            templates=self.templates.seen_by(may_read),
        )

    def has_uri(self, uri: str) -> bool:
        """Return whether a URI is one of an own resource, or matches an own template."""
        if uri in self.resources.changed:
            return True
        compared = ComparedUri(uri)
        try:
            return any(map(compared.matches, self.templates.changed))
        except TooMuchEffort:
            return False


@dataclass(frozen=True)
class OwnLists:
    """All in which an instance differs.

    Attributes:
        tools: Its tools; None if they do not differ.
        others: Its prompts, resources and templates; None if they do not differ, or are unknown.
    """

    tools: OwnTools | None = None
    others: OwnPromptsResources | None = None

    @property
    def tools_digest(self) -> str:
        """Identifies its tools; empty if callers see no difference."""
        return self.tools.digest if self.tools is not None else ""

    @property
    def digest(self) -> str:
        """Identifies all; empty if callers see no difference."""
        others = self.others.digest if self.others is not None else ""
        return f"{self.tools_digest} {others}" if self.tools_digest or others else ""

    @property
    def size(self) -> int:
        """The bytes of the changed definitions."""
        return sum(part.size for part in (self.tools, self.others) if part is not None)

    @property
    def skipped(self) -> tuple[str, ...]:
        """A part of a sentence for each thing that it adds and that is not exposed."""
        parts = (part.skipped for part in (self.tools, self.others) if part is not None)
        return tuple(text for skipped in parts for text in skipped)

    def over(self, common: CompiledToolset) -> CompiledToolset:
        """Return the toolset by which calls and requests of the lease are checked."""
        toolset = self.tools.toolset if self.tools is not None else common
        if self.others is None:
            return toolset
        return replace(toolset, prompts_resources=self.others.compiled)


def digest_of(*lists: OwnItems) -> str:
    """Identify several lists together; empty if they have no difference."""
    digests = [items.digest for items in lists]
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:32] if any(digests) else ""


def own_prompts_resources(
    common: CompiledPromptsResources,
    listed: ListedPromptsResources | None,
    rules: NameRules | None,
    unoffered: frozenset[str] = frozenset(),
) -> OwnPromptsResources | None:
    """Return the prompts, resources and templates in which an instance differs.

    None if it does not, has not been asked, or there are no rules of names.

    Args:
        common: The prompts and resources of all.
        listed: What the instance lists; None if it has not been asked.
        rules: The rules of the server's names.
        unoffered: Recorded prompts that it has never listed to the client for which it was started;
            they can be requested, so that the server says why not.
    """
    if listed is None or rules is None or rules.prompts is None:
        return None
    skipped: list[str] = []
    bounded = _Bounded("prompt", skipped)
    changed, missing = _difference(common.recorded_prompts, listed.prompts, "name")
    taken = {name: original for original, name in common.prompts.items() if original not in missing}
    prompts = OwnItems(
        dict(bounded.keep(_named_prompts(changed, common, rules, taken, skipped))),
        tuple(name for name in missing if name in common.prompts),
    )
    resources = _of_uris(
        "resource", common.recorded_resources, listed.resources, "uri", common.uris, skipped
    )
    templates = _of_uris(
        "template", common.recorded_templates, listed.templates, "uriTemplate", common.uris, skipped
    )
    if not (prompts.digest or resources.digest or templates.digest or skipped):
        return None
    kept = {
        original: name
        for original, name in common.prompts.items()
        if original not in missing or original in unoffered
    }
    added = {original: name for original, (name, _) in prompts.changed.items()}
    compiled = replace(common, prompts=kept | added)
    return OwnPromptsResources(
        compiled,
        prompts=prompts,
        resources=resources,
        templates=templates,
        skipped=tuple(skipped),
    )


def _difference(
    recorded: tuple[bytes, ...], listed: tuple[bytes, ...], member: str
) -> tuple[dict[str, bytes], list[str]]:
    """Return what is listed and not recorded so, by name, and the names that are not listed.

    Only what callers depend on counts.
    """
    if recorded == listed:
        return {}, []
    known, same = frozenset(recorded), frozenset(listed)
    before = definitions_by_name((one for one in recorded if one not in same), member)
    after = definitions_by_name((one for one in listed if one not in known), member)
    changed = {
        name: definition
        for name, definition in sorted(after.items())
        if name not in before or not same_items([before[name]], [definition])
    }
    return changed, [name for name in before if name not in after]


def _named_prompts(
    changed: Mapping[str, bytes],
    common: CompiledPromptsResources,
    rules: NameRules,
    taken: dict[str, str],
    skipped: list[str],
) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Yield the exposed name and the definition of prompts that pass the rules."""
    assert rules.prompts is not None
    passing = list(filter(rules.prompts.passes, changed))
    new = (name for name in passing if name not in common.prompts and is_valid_original_name(name))
    names = exposed_names(new, rules.transforms, taken)
    for original in passing:
        definition = changed[original]
        name = common.prompts.get(original) or names.get(original, original)
        why = name_fault(original, name)
        if not why and taken.setdefault(name, original) != original:
            why = f"its name would be {name}, which another prompt of the server has"
        if why:
            skipped.append(f"prompt {shown(original)} ({why})")
        else:
            yield original, (name, definition)


def _of_uris(
    noun: str,
    recorded: tuple[bytes, ...],
    listed: tuple[bytes, ...],
    member: str,
    uris: UriFilter,
    skipped: list[str],
) -> OwnItems:
    changed, missing = _difference(recorded, listed, member)
    allowed = (
        (uri, (uri, definition))
        for uri, definition in changed.items()
        if len(uri) <= bounds.MAX_URI and uri.isprintable() and uris.allows(uri)
    )
    bounded = _Bounded(noun, skipped)
    return OwnItems(dict(bounded.keep(allowed)), tuple(filter(uris.allows, missing)))


class _Bounded:
    """Keeps items of one list within the bounds of a lease.

    Args:
        noun: An item, for messages.
        skipped: Gets a part of a sentence for each item beyond them.
    """

    def __init__(self, noun: str, skipped: list[str]) -> None:
        self._noun = noun
        self._skipped = skipped

    def keep(
        self, items: Iterable[tuple[str, tuple[str, bytes]]]
    ) -> Iterator[tuple[str, tuple[str, bytes]]]:
        """Yield the items that fit."""
        count = size = 0
        for original, (name, definition) in items:
            if count >= bounds.MAX_LEASE_TOOLS:
                why = f"a lease adds or changes at most {bounds.MAX_LEASE_TOOLS} of them"
            elif size + len(definition) > bounds.MAX_LEASE_TOOL_BYTES:
                why = f"their definitions have more than {bounds.MAX_LEASE_TOOL_BYTES} bytes"
            else:
                count, size = count + 1, size + len(definition)
                yield original, (name, definition)
                continue
            self._skipped.append(f"{self._noun} {shown(original)} ({why})")
