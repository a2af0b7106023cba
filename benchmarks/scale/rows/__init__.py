"""The measured events, each at several sizes of the fleet."""
