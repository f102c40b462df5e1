"""Engines: token ids in, token ids and log-probs out."""
