"""The nodes between a message and its answer, one file each, and the gateway for front ends."""
