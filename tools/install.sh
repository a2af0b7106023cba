#!/usr/bin/env bash
# Install packages into an environment: tools/install.sh ENVIRONMENT ARGUMENT_OF_PIP...
# uv takes a third of pip's time, and one cache serves all environments. It reads nothing of pip's
# configuration, so pip installs where only that names the index.
set -euo pipefail

python=$1/bin/python
shift
.build/uv/bin/uv pip install --quiet --python "$python" "$@" || {
  echo "install: uv failed; pip installs the same now." >&2
  .build/uv/bin/python -m pip --python "$python" install --quiet "$@"
}
