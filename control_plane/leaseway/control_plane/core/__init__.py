"""The control plane's decisions, as functions of state, event and time.

Pure: no I/O, no clock, no protobuf. Imports `spec` and pure modules of `wire`; never services,
`sync` or `config`.
"""
