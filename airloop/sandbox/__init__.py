"""Where an agent's commands run: closed sandboxes that cost milliseconds. See base.py for the contract."""
