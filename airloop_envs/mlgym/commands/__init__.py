"""The agent's commands: what they are inside a sandbox (shell.py, inside/) and how the session reads them."""

from airloop_envs.mlgym.commands.output import Request, clean_output, cut_middle, requests
from airloop_envs.mlgym.commands.rewrite import prepare
from airloop_envs.mlgym.commands.shell import (
    COMMANDS,
    DIRECTORY,
    HOME_TOOLS_PATH,
    SETUP,
    TOOLS_PATH,
    WINDOW_VARIABLE,
    files,
    setup,
)
from airloop_envs.mlgym.commands.training import is_training

__all__ = [
    "COMMANDS",
    "DIRECTORY",
    "HOME_TOOLS_PATH",
    "SETUP",
    "TOOLS_PATH",
    "WINDOW_VARIABLE",
    "Request",
    "clean_output",
    "cut_middle",
    "files",
    "is_training",
    "prepare",
    "requests",
    "setup",
]
