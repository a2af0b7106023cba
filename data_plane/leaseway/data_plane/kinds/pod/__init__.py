"""Images as pods of Kubernetes."""
