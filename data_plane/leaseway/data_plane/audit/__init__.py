"""The audit: a redacted record of each call, in files whose lines are chained by hashes.

`redact` and `chain` are pure, `record` builds records and `log` writes them. Never imports `calls`,
which passes in all values.
"""
