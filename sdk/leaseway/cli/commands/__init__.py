"""The subcommands, one module for each group.

Imported when a command runs, so that help stays quick.
"""
