"""Capabilities that come with the project; each uses only public names of the framework."""

import importlib

if __name__ == "capabilities":  # this folder itself is on the path, as in a checkout
    importlib.import_module("capgraph.compat.framework_alias").install_framework_alias(
        "capabilities"
    )
