"""References {env}, {file} and {secret}: how a worker resolves them; a child's environment.

Values that are resolved here are redacted from every text that leaves the process.
"""
