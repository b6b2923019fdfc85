"""Entry point of ``python -m capgraph``."""

from capgraph.cli.main import main

if __name__ == "__main__":
    main()
