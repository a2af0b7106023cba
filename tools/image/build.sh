#!/usr/bin/env bash
# Build the image from this checkout, with what requirements.txt and requirements-stores.txt lock.
#
#   tools/image/build.sh [TARGET]       TARGET: runtime (the default) or node
#
#   DOCKER     docker or podman                              (docker)
#   TAG        what it is called               (leaseway:VERSION, with -node, with -stores)
#   STORES     1 adds the clients of PostgreSQL and of object stores: the image for a control plane
#              with --store and workers with --audit-sink s3://…                           (0)
#   BASE       an image of Debian                            (the Dockerfile's)
#   NODE       an image with node below /usr/local           (the Dockerfile's)
#   APT        1 keeps apt, dpkg and perl, for images made of this one   (0)
#   PYTHON_VERSION  of that Debian's python3                 (3.13)
#   PLATFORMS  such as "linux/amd64 linux/arm64": buildx makes all of them and pushes (PUSH=1)
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${1:-runtime}
python=${PYTHON:-.venv/bin/python}
docker=${DOCKER:-docker}
context=.build/image/context
minor=${PYTHON_VERSION:-3.13}
version=$("$python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
suffix=; [ "$target" = node ] && suffix=-node
locks=(deploy/image/requirements.txt)
if [ "${STORES:-0}" = 1 ]; then suffix+=-stores; locks+=(deploy/image/requirements-stores.txt); fi
tag=${TAG:-leaseway:$version$suffix}
platforms=${PLATFORMS:-linux/$(uname -m | sed -e s/x86_64/amd64/ -e s/aarch64/arm64/)}

rm -rf "$context"; mkdir -p "$context/wheels" .build/image/cache
cp deploy/image/Dockerfile "${locks[@]}" "$context/"
cp tools/image/sbom.py tools/image/bytecode.py "$context/wheels/"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$context/wheels" .
(cd "$context/wheels" && echo leaseway-*.whl) > "$context/leaseway.whl.name"
for platform in $platforms; do
  architecture=${platform#linux/}
  machine=$(echo "$architecture" | sed -e s/amd64/x86_64/ -e s/arm64/aarch64/)
  kinds=()
  for glibc in 17 24 26 27 28 31 34 35 36; do kinds+=(--platform "manylinux_2_${glibc}_$machine"); done
  cache=.build/image/cache/$architecture-$minor
  # Wheels of the target's platform and Python, each with a hash of a lock file.
  "$python" -m pip download --quiet --no-deps --require-hashes --only-binary :all: "${kinds[@]}" \
    --platform "manylinux2014_$machine" --python-version "$minor" --implementation cp \
    "${locks[@]/#/--requirement=}" --dest "$cache"
  cp -r "$cache" "$context/wheels/$architecture"
  mkdir -p "$context/uv/$architecture"
  if [ "$target" = node ]; then
    "$python" -m pip download --quiet --no-deps --only-binary :all: "${kinds[@]}" \
      --platform "manylinux2014_$machine" --dest .build/image/uv-"$architecture" uv==0.11.8
    "$python" -m zipfile -e .build/image/uv-"$architecture"/uv-*.whl .build/image/uv-"$architecture"/files
    cp .build/image/uv-"$architecture"/files/uv-*/scripts/uv* "$context/uv/$architecture/" 
    cp .build/image/uv-"$architecture"/files/uv-*.data/scripts/uv* "$context/uv/$architecture/" 2>/dev/null || true
    chmod 755 "$context/uv/$architecture"/*
  fi
done

arguments=(--target "$target" --tag "$tag" --file "$context/Dockerfile")
[ "${STORES:-0}" = 1 ] && arguments+=(--build-arg STORES=1)
[ -n "${APT:-}" ] && arguments+=(--build-arg "APT=$APT")
[ -n "${BASE:-}" ] && arguments+=(--build-arg "BASE=$BASE")
[ -n "${NODE:-}" ] && arguments+=(--build-arg "NODE=$NODE")
if [ -n "${PLATFORMS:-}" ]; then
  "$docker" buildx build "${arguments[@]}" --platform "${platforms// /,}" --sbom=true ${PUSH:+--push} "$context"
else
  "$docker" build "${arguments[@]}" "$context"
fi
echo "built $tag"
