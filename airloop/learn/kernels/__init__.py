"""Triton kernels of the training pass, each with its backward. Imported on CUDA only, and by their tests, which run
them in Triton's interpreter. What they compute is said in plain torch in airloop/learn/block_ops.py."""
