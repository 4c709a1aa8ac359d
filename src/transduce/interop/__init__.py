"""Other people's formats: what a model is called there, and under which names its weights stand."""
