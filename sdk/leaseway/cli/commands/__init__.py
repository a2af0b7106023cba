"""The subcommands, a folder for each purpose and a module for each group.

Imported when a command runs, so that help stays quick.
"""
