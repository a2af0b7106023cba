"""What each server exposes to whom: listings, exposed names, variants and registry snapshots.

Pure. Imports problems; independent of workers and placement.
"""
