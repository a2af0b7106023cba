"""OpenAPI 3.0 and 3.1 documents as HTTP tools: one tool for each operation that is chosen.

Pure: a document in, tools and reasons out; whoever uses it reads the file. It may import specs and
names, and knows nothing of configuration files.
"""
