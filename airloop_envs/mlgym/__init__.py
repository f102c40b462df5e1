"""Machine-learning research tasks in a shell, as MLGym describes them. See env.py."""
