"""Questions that need several documents: search, read, cite, answer."""
