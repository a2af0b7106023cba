#!/bin/sh
# Checks the protos: style and comments, no breaking change since the newest tag, and that the
# committed code is what they generate. Runs from the repository's root.
set -eu
python=${PYTHON:-.build/protos/bin/python}
buf=${BUF:-.venv/bin/buf}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Builds a descriptor set of the protos below $1 into $2.
image() {
  includes=$("$python" -c 'import google.rpc, pathlib; print(pathlib.Path(list(google.rpc.__path__)[0]).parent.parent)')
  (cd "$1" && "$python" -m grpc_tools.protoc -I. -I"$includes" --include_imports \
    --include_source_info --descriptor_set_out="$2" leaseway/v1/*.proto)
}
case $python in /*) ;; *) python=$PWD/$python ;; esac

image "$PWD/protos" "$scratch/now.binpb"
"$buf" lint "$scratch/now.binpb" --config buf.yaml

if tag=$(git describe --tags --abbrev=0 2>/dev/null); then
  git archive "$tag" protos | tar -x -C "$scratch"
  image "$scratch/protos" "$scratch/then.binpb"
  "$buf" breaking "$scratch/now.binpb" --against "$scratch/then.binpb" --config buf.yaml
else
  echo "protos: no tag yet, so there is nothing that a change could break."
fi

mkdir "$scratch/sdk"
PYTHON=$python tools/generate.sh "$scratch/sdk"
if ! diff -r --exclude=__pycache__ --exclude=__init__.py --exclude=py.typed \
  "$scratch/sdk/leaseway/v1" sdk/leaseway/v1; then
  echo "protos: sdk/leaseway/v1 is not what protos/ generate. Run: make generate" >&2
  exit 1
fi
