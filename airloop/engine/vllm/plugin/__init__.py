"""What a server of vLLM gets of ours. It lives in vLLM's environment, where air is not installed: nothing in here
imports anything but Python's own library and vLLM."""
