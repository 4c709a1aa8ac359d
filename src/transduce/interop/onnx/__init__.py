"""Export models to ONNX graphs, and run the exported graphs by onnxruntime."""
