"""Entry point of ``python -m capgraph``."""

import sys

if __name__ == "__main__":
    try:
        from capgraph.cli.main import main

        main()
    except KeyboardInterrupt:  # during the imports, for example while 'capgraph dev' restarts
        sys.exit(130)
