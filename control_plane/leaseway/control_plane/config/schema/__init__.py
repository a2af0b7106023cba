"""What an entry may say: keys, values, filters and credentials, and every mistake with its place.

Pure. Imports `tree` and the server specification; knows neither formats nor layers.
"""
