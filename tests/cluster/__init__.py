"""A cluster of namespaces under its tests, with what happens to clusters."""
