#!/bin/sh
# Generates leaseway.v1 from protos/ into the folder given (default: sdk).
# PYTHON is an interpreter with tools/protos.txt installed; `make generate` provides one.
set -eu
out=${1:-sdk}
python=${PYTHON:-.build/protos/bin/python}
tools=$(dirname "$python")
includes=$("$python" -c 'import google.rpc, pathlib; print(pathlib.Path(list(google.rpc.__path__)[0]).parent.parent)')
PATH="$tools:$PATH" "$python" -m grpc_tools.protoc -Iprotos -I"$includes" \
  --python_out="$out" --grpc_python_out="$out" \
  --mypy_out=quiet:"$out" --mypy_grpc_out=quiet:"$out" \
  protos/leaseway/v1/*.proto
