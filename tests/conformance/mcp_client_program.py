"""Program that MCP's conformance suite starts for each scenario.

It hands the scenario to the process of ``mcp_client``, because importing capgraph for each scenario
would take most of the time.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Hand the scenario over and return 0 if the client ended without an error."""
    variables = {
        name: os.environ.get(f"MCP_CONFORMANCE_{name}")
        for name in ("SCENARIO", "CONTEXT", "PROTOCOL_VERSION")
    }
    port, url = int(sys.argv[1]), sys.argv[2]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(json.dumps({"url": url, **variables}).encode() + b"\n")
        error = connection.makefile().read()
    sys.stderr.write(error)
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())
