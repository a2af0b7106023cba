#!/bin/sh
# Generates sdk/leaseway/v1 from protos/ into the folder given (default: sdk).
set -eu
out=${1:-sdk}
python=${PYTHON:-python3}
includes=$("$python" -c 'import google.rpc, pathlib; print(pathlib.Path(list(google.rpc.__path__)[0]).parent.parent)')
"$python" -m grpc_tools.protoc -Iprotos -I"$includes" \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" \
  protos/leaseway/v1/*.proto
