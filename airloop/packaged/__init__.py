"""Our environments as packages: for verifiers and prime-rl, which load and import them."""
