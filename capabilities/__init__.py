"""Capabilities that ship with capgraph. They use only public names of the framework."""

import importlib

if __name__ == "capabilities":  # a checkout has this folder's parent on sys.path
    importlib.import_module("capgraph.compat.framework_alias").install_framework_alias(
        "capabilities"
    )
