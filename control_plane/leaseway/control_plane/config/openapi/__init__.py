"""Converts OpenAPI 3.0 and 3.1 documents to HTTP tools, one for each selected operation.

Only `documents` and `split.parts` read files and URLs. Imports specs, `wire` and
`tree`; never the readers of keys.
"""
