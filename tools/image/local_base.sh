#!/usr/bin/env bash
# Make a base image on this machine, where none can be pulled: Debian's smallest, as `docker import`
# takes it. Needs root and debootstrap. Prints the image's name, for BASE= of build.sh.
#
#   tools/image/local_base.sh [NAME]
set -euo pipefail
cd "$(dirname "$0")/../.."
name=${1:-leaseway-base:bookworm}
docker=${DOCKER:-docker}
root=${ROOT_FOLDER:-.build/image/base}
if [ ! -e "$root/usr/bin/apt-get" ]; then
  rm -rf "$root" && mkdir -p "$root"
  debootstrap --variant=minbase bookworm "$root" >&2
fi
# What the slim images leave out, too.
tar -C "$root" -c --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' \
  --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' \
  --exclude='./usr/share/info/*' --exclude='./var/log/*' --exclude='*/__pycache__' \
  --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' . | "$docker" import - "$name" >/dev/null
echo "$name"
