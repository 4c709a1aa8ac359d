"""Read and write model folders."""
