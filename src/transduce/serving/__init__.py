"""Models behind HTTP: the LibreTranslate API, adapters for DeepL's and OpenAI's clients, and what keeps both alive."""
