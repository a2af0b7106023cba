"""Listings, exposed names, variants and registry snapshots: what each server exposes to whom.

Pure. Imports `problems`; never workers or placement.
"""
