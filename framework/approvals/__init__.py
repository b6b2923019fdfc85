"""What a person is asked, how an answer is read, and what was agreed to for good."""
