"""ONNX graphs of models, and their execution by onnxruntime."""
