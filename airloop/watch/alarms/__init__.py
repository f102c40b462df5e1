"""Alarms of a running training, and the rules that raise them."""
