"""Trees of a YAML or JSON file that remember where each value stands.

The ground of the configuration: imports nothing else of it.
"""
