"""Imports models from other programs and exports models to them; every export is run and compared first."""
