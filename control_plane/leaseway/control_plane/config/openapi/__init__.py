"""Converts OpenAPI 3.0 and 3.1 documents to HTTP tools: one tool for each chosen operation.

Only `documents` reads files and addresses. Imports specs and names, not configuration files.
"""
