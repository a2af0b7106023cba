#!/usr/bin/env bash
# Build kube-apiserver from Go modules into .build/kubernetes/bin: an API to test against, without a
# cluster. Takes four minutes on two cores the first time. Needs go, and etcd for running it.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=${KUBERNETES_VERSION:-1.34.2}
out=$PWD/.build/kubernetes
stamp=$out/bin/kube-apiserver-$version
[ -x "$stamp" ] && exit 0
command -v go >/dev/null || { echo "build_apiserver: there is no go on this machine." >&2; exit 1; }

mkdir -p "$out/src" "$out/bin"
cd "$out/src"
cat > tools.go <<'GO'
//go:build tools

package tools

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
GO
# Kubernetes' own go.mod replaces its staging modules by folders, which a module outside cannot: each
# is replaced by the version that was published for the same release.
module=$(GOFLAGS=-mod=mod go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
{
  echo "module leaseway.invalid/kube-apiserver"
  echo
  sed -n 's/^go /go /p' "$module"
  echo "require k8s.io/kubernetes v$version"
  sed -n 's|^[[:space:]]*\(k8s.io/[a-z0-9-]*\) => \./staging/.*|replace \1 => \1 v0.'"${version#1.}"'|p' "$module"
} > go.mod
rm -f go.sum
nice -n 15 go mod tidy -e >/dev/null 2>tidy.log || { tail -20 tidy.log >&2; exit 1; }
# Its version is written in by the linker; clients such as helm ask for it.
about=k8s.io/component-base/version
flags="-s -X $about.gitVersion=v$version -X $about.gitMajor=1 -X $about.gitMinor=$(echo "$version" | cut -d. -f2)"
nice -n 15 go build -mod=mod -ldflags="$flags" -o "$stamp" k8s.io/kubernetes/cmd/kube-apiserver
ln -sf "$(basename "$stamp")" "$out/bin/kube-apiserver"
"$stamp" --version
