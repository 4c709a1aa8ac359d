"""Convert models, tokenizers and vectors from and to other formats: Hugging Face, CTranslate2, ONNX, tutorials."""
