"""What `run_python` is inside the agent's world. Read as text by rooms.py and run there: standard library and bs4 only.

The page and the task's words come with the code, on stdin, in every call: so the page is always the one that the
agent is on, and nothing of an earlier call is needed. What else the task has (its answer, its kind) never comes here.
"""

import json
import linecache
import os
import sys
import traceback

NAME = "<code>"


def make_soup(html=None, parser="html.parser"):  # type: ignore[no-untyped-def]
    """A BeautifulSoup of the page, or of other HTML, by "html.parser", "lxml" or "html5lib"."""
    from bs4 import BeautifulSoup

    return BeautifulSoup(PAGE if html is None else html, parser)


def names(given):  # type: ignore[no-untyped-def]
    known = {"HTML": given["html"], "QUERY": given["query"], "CONSTRAINTS": given["constraints"]}
    return {"__name__": "__main__", "__builtins__": __builtins__, "make_soup": make_soup, **known}


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
run(received["code"], names(received))
