"""The ``capgraph`` command: argument parsing and terminal output only."""
