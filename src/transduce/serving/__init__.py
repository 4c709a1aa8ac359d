"""Serve translation and language models over HTTP, with the APIs of LibreTranslate, DeepL, OpenAI and Ollama."""
