"""The node daemon and its command line."""
