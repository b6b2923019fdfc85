"""Settings, logging, and streaming helpers. The lowest layer: it imports no other package of capgraph."""

import importlib

if __name__ == "configs":  # imported as a top-level package, as in a checkout
    importlib.import_module("capgraph.compat.framework_alias").install_framework_alias("configs")
