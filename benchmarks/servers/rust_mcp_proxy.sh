#!/bin/sh
# Runs the Rust gateway mcp-proxy 0.6 (tower-mcp) in front of a stdio server, for `--peer`:
#   cargo install mcp-proxy --version 0.6.0 --no-default-features
#   python -m benchmarks --peer 'mcp-proxy (Rust)=sh benchmarks/servers/rust_mcp_proxy.sh {port} {python} {script}'
set -eu
exec mcp-proxy --config /dev/stdin <<TOML
[proxy]
name = "peer"
[proxy.listen]
host = "127.0.0.1"
port = $1
[observability]
log_level = "error"
[[backends]]
name = "peer"
transport = "stdio"
command = "$2"
args = ["$3"]
TOML
