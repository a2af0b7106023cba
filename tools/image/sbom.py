"""Write a CycloneDX bill of materials of a virtual environment. Standard library only.

python3 sbom.py ENVIRONMENT FILE
"""

from __future__ import annotations

import json
import sys
from email.parser import HeaderParser
from pathlib import Path
from typing import Any


def components(environment: Path) -> list[dict[str, Any]]:
    """Return the packages of an environment, by name."""
    found = []
    for file in environment.glob("lib/python*/site-packages/*.dist-info/METADATA"):
        about = HeaderParser().parsestr(file.read_text(errors="replace"))
        name, version = str(about["Name"]), str(about["Version"])
        licence = about["License-Expression"] or about["License"] or ""
        component: dict[str, Any] = {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
        }
        if licence and "\n" not in licence:
            component["licenses"] = [{"license": {"name": licence}}]
        found.append(component)
    return sorted(found, key=lambda component: str(component["name"]).lower())


def main(environment: str, path: str) -> None:
    """Write the file."""
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": components(Path(environment)),
    }
    Path(path).write_text(json.dumps(bill, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
