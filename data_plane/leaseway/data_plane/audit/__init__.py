"""The audit: a redacted record of each call, in files whose lines are chained by hashes.

`redact` and `chain` are pure, `record` builds records and `log` writes them. Imports nothing of
`calls`, which passes everything in.
"""
