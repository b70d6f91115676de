"""YAML documents: parsing with line numbers, field declarations, and all problems of a document at once."""
