"""Import models from other programs, and export models to them; every export is run and compared first."""
