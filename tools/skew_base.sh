#!/bin/sh
# Prints the commit that `make skew` compares with: 50 commits ago, but none from before the
# planes' current protocol, in which specs travel as the bytes of spec/codec.py.
set -eu
cd "$(dirname "$0")/.."
first=$(git log --diff-filter=A --format=%H -- sdk/leaseway/spec/codec.py | tail -n 1)
if [ -z "$first" ] || git merge-base --is-ancestor "$first" HEAD~50 2>/dev/null; then
  echo HEAD~50
else
  echo "$first"
fi
