"""Triton kernels of the engine. Imported on CUDA only; tests run them in Triton's interpreter."""
