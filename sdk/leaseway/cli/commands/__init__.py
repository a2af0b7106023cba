"""The subcommands, in one folder for each purpose and one module for each group.

A module is imported when its command runs, so that `--help` stays fast.
"""
