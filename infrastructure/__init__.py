"""Infrastructure nodes that turn a message into an answer, and the gateway for front ends."""

import importlib

if __name__ == "infrastructure":  # a checkout has this folder's parent on sys.path
    importlib.import_module("capgraph.compat.framework_alias").install_framework_alias(
        "infrastructure"
    )
