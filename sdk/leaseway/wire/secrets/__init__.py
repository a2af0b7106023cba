"""Secrets: names and patterns that reveal them, and redaction of texts.

Pure. Imports only the standard library.
"""
