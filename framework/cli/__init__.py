"""The command line interface, ``capgraph``."""
