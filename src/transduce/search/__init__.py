"""Decoding: greedy search, beam search and sampling over a step function, independent of model and text."""
