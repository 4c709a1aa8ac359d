"""Tools to inspect models and corpora: attention, beam search, word alignment, interventions, checks and plots."""
