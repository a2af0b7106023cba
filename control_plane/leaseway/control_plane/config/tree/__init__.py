"""YAML and JSON files as trees with the position of each value; imports nothing else of config."""
