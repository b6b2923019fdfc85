"""Query engine of the data capabilities: files, columns, units, questions, and answers in words."""
