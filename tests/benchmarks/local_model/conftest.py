"""No module here is a test, and some import packages of an extra."""

collect_ignore_glob = ["*.py"]
