"""Query engine of the data capabilities, which parses questions and computes answers with DuckDB."""
