"""HTTP server for translation and language models, with the APIs of LibreTranslate, DeepL, OpenAI and Ollama."""
