"""Reads and writes model folders."""
