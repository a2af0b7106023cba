"""Watches files, folders and namespaces: yields the content of all after each change."""
