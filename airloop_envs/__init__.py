"""Environments with dependencies of their own: research in a shell, questions by retrieval, web pages by code."""
