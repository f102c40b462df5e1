"""Where metrics go beside the run directory: W&B, TensorBoard."""
