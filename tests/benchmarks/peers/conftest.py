"""Nothing here is a test, and most of it imports packages of an extra."""

collect_ignore_glob = ["*.py"]
