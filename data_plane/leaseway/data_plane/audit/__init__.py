"""The audit: a redacted record of each call, in files whose lines are chained by hashes.

`redact`, `chain`, `segments` and `backlog` are pure; `record` builds records, `log` writes them,
`shipping` ships them to one of the `sinks`, and `verifying` reads those. Never imports `calls`,
which passes in all values.
"""
