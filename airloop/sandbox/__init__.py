"""Where an agent's commands run: closed worlds that cost milliseconds. See base.py for the contract."""
