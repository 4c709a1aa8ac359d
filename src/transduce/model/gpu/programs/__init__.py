"""What runs on the GPU: programs in Triton's language, which the modules beside this folder launch."""
