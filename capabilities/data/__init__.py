"""What the data capabilities share: files, columns, words, relations, numbers in words."""
