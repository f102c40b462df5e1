"""The kinds of tasks, one function each; importing a module here registers its kinds."""
