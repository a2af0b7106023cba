"""Servers that are an image (`transport: stdio` with `image`).

Where workers are pods of Kubernetes, each instance is a pod, elsewhere a container. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import ClassVar, Final

from leaseway.spec.keys import Key, OwnReader, setting
from leaseway.spec.kinds.shared import CommandPart

MAX_IMAGE: Final = 1_024
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


@dataclass(frozen=True)
class ContainerPart(CommandPart):
    """A server that the worker runs in a container or pod.

    Attributes:
        image: The name of the image.
    """

    transports: ClassVar[tuple[str, ...]] = ("stdio",)
    readers: ClassVar[str] = "leaseway.control_plane.config.schema.kinds.container"
    on_worker: ClassVar[bool] = False

    image: str = setting(
        "",
        Key(
            OwnReader(),
            "The container image of the server; each instance is a container:"
            " [servers as images](kubernetes.md#servers-as-images).",
            replaces="names",
        ),
    )

    @classmethod
    def is_meant(cls, settings: Container[str]) -> bool:
        return "image" in settings


def image_fault(text: str) -> str | None:
    """Return what is wrong with the name of an image, as the end of a sentence, or None."""
    if len(text) <= MAX_IMAGE and _IMAGE.fullmatch(text):
        return None
    return (
        "must be the name of an image, such as registry.example/team/server:1.2, but is"
        f" {text[:100]!r}."
    )
