"""The node's side of a cluster: starts, holds, resizes and ends the jobs of a scheduler on this node."""
