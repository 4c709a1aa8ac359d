"""Run trained models: translation, generation, classification, parsing and forecasting."""
