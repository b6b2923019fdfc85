"""Settings, logging and streaming helpers. Imports nothing else of the project."""

import importlib

if __name__ == "configs":  # this folder itself is on the path, as in a checkout
    importlib.import_module("capgraph.compat.framework_alias").install_framework_alias("configs")
