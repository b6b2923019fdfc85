"""The suites take minutes and install kits: ``make test-conformance`` runs them, pytest does not."""

collect_ignore_glob = ["*.py"]
