"""HTTP server for translation models: the LibreTranslate API, adapters for DeepL's and OpenAI's clients, and limits."""
