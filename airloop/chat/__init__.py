"""Conversations with the policy: tokens that are never changed, and replies that are read."""
