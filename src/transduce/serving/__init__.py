"""Models behind HTTP: the LibreTranslate API, an adapter for DeepL's clients, and what keeps both alive."""
