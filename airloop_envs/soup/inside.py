"""What `run_python` is inside the agent's sandbox. Read as text and run there: bs4 and the standard library.

The page and the task's words come with the code, on stdin, in every call: so the page is always the one that the
agent is on, and nothing of an earlier call is needed. What else the task has (its answer, its kind) never comes here.
The filter that comes too (quiet.py) sees to it that nothing of this call is left for the next.
"""

import base64
import ctypes
import json
import linecache
import os
import struct
import sys
import traceback

NAME = "<code>"
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38


def make_soup(html=None, parser="html.parser"):  # type: ignore[no-untyped-def]
    """A BeautifulSoup of the page, or of other HTML, by "html.parser", "lxml" or "html5lib"."""
    from bs4 import BeautifulSoup

    return BeautifulSoup(PAGE if html is None else html, parser)


def names(given):  # type: ignore[no-untyped-def]
    known = {"HTML": given["html"], "QUERY": given["query"], "CONSTRAINTS": given["constraints"]}
    return {"__name__": "__main__", "__builtins__": __builtins__, "make_soup": make_soup, **known}


def be_quiet(rules):  # type: ignore[no-untyped-def]
    """From here on this process can only read, compute and print."""
    call = ctypes.CDLL(None, use_errno=True).prctl
    code = ctypes.create_string_buffer(rules, len(rules))
    program = struct.pack("=H6xQ", len(rules) // 8, ctypes.addressof(code))
    if call(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or call(PR_SET_SECCOMP, 2, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no filter can be installed")


def run(code, known):  # type: ignore[no-untyped-def]
    linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)
    try:
        exec(compile(code, NAME, "exec", dont_inherit=True), known)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ else None  # without this frame
        traceback.print_exception(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


received = json.loads(sys.stdin.buffer.read())
sys.stdin = open(os.devnull)  # noqa: SIM115 - for the rest of this process
PAGE = received["html"]
if received["rules"]:
    be_quiet(base64.b64decode(received["rules"]))
run(received["code"], names(received))
