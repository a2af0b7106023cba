"""What each server exposes and to whom: variants, exposed names, listings, one registry snapshot.

Pure. Imports problems; knows no worker and no placement.
"""
