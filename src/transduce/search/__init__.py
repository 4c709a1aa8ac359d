"""Choosing target pieces. Search knows a step function and nothing else: neither model nor text."""
