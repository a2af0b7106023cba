"""What calls were made: one record a call, redacted, chained by hashes and written to files.

`redact` and `chain` are pure, `record` says what is in a record, and `log` writes. It imports
`wire` and nothing of how calls run: `calls` hands it what it needs.
"""
