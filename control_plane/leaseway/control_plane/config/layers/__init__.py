"""Configuration layers: combines system, domain and session files into one result.

Pure functions of parsed documents. Imports `schema` and `tree`; never reads or watches files.
"""
