"""Where the processes of a run are started: on this machine (local.py); another place is one more file."""
