"""The nodes between a message and its answer, one file each, and the gateway for front ends."""

import importlib

if __name__ == "infrastructure":  # this folder itself is on the path, as in a checkout
    importlib.import_module("capgraph.compat.framework_alias").install_framework_alias(
        "infrastructure"
    )
