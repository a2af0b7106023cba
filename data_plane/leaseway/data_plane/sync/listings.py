"""Writes what an instance lists to messages for the control plane."""

from __future__ import annotations

from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.v1 import sync_pb2


def add_lists(result: sync_pb2.ProbeResult, live: LiveInstance, *, is_own: bool = False) -> None:
    """Add the lists of an instance to a message.

    Args:
        result: The message.
        live: The instance.
        is_own: Whether only the person that it acts for sees them; others do not see what the
            server says to a person.
    """
    instance = live.instance
    result.tools.extend(
        sync_pb2.RecordedTool(definition=definition) for definition in instance.tools.values()
    )
    result.protocol_version = instance.protocol_version
    said = instance.introduction
    result.introduction.capabilities.extend(said.capabilities)
    if is_own or not live.spec.part.auth.is_of_people:
        result.introduction.instructions = said.instructions
        result.introduction.extensions.extend(said.extensions)
    if instance.prompts_resources is not None:
        result.prompts.extend(instance.prompts_resources.prompts)
        result.resources.extend(instance.prompts_resources.resources)
        result.resource_templates.extend(instance.prompts_resources.templates)
