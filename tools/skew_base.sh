#!/bin/sh
# Prints the commit that `make skew` compares with: 50 commits ago, but none from before the
# current protocol, in which the calls of a stream share heads (IncomingCall).
set -eu
cd "$(dirname "$0")/.."
first=$(git log --diff-filter=A --format=%H -- data_plane/leaseway/data_plane/core/calls/incoming.py | tail -n 1)
if [ -z "$first" ] || git merge-base --is-ancestor "$first" HEAD~50 2>/dev/null; then
  echo HEAD~50
else
  echo "$first"
fi
