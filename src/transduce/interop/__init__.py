"""Conversion between this package's models and other formats: Hugging Face, CTranslate2, ONNX and word vectors."""
