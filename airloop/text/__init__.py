"""Text for people: tables, sparklines, plain signs, spelling."""
