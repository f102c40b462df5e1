"""The checks themselves, one file for each family of failures."""
