"""Published conformance suites and official clients, run against capgraph."""
