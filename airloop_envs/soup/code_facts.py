"""What code does with BeautifulSoup, read from its syntax tree: words in comments and strings do not count."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from airloop.text.python import parse_python

SELECTING = frozenset(
    {
        *("find", "find_all", "select", "select_one", "find_next", "find_all_next", "find_previous", "find_parent"),
        *("find_parents", "find_next_sibling", "find_next_siblings", "find_previous_sibling"),
        *("children", "descendants", "next_sibling", "next_siblings", "previous_sibling", "parent", "contents"),
    }
)
CONTENT = frozenset({"get_text", "text", "string", "strings", "stripped_strings", "get", "attrs", "decode_contents"})
STEPS = ("imported", "built", "selected", "read")


@dataclass(frozen=True)
class CodeFacts:
    imported: bool = False  # bs4, or make_soup, which has it imported
    built: bool = False  # a soup
    selected: bool = False  # elements of it
    read: bool = False  # text or attributes

    def __or__(self, other: CodeFacts) -> CodeFacts:
        return CodeFacts(*(getattr(self, step) or getattr(other, step) for step in STEPS))

    @property
    def share(self) -> float:
        return sum(getattr(self, step) for step in STEPS) / len(STEPS)


def code_facts(code: str) -> CodeFacts:
    """Nothing is known of code that is no Python. Without a soup there is nothing to select from or to read."""
    try:
        nodes = list(ast.walk(parse_python(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return CodeFacts()
    makers = {"make_soup", *_imported_names(nodes)}
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    built = any(_is_maker(func, makers) for func in calls)
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    selected = built and bool(attributes & SELECTING or _dotted_tags(nodes))
    read = built and bool(attributes & CONTENT or any(isinstance(node, ast.Subscript) for node in nodes))
    return CodeFacts(built or len(makers) > 1, built, selected, read)


def _imported_names(nodes: Iterable[ast.AST]) -> set[str]:
    """What the code calls bs4 and its BeautifulSoup."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name for alias in node.names if alias.name.split(".")[0] == "bs4"}
        elif isinstance(node, ast.ImportFrom) and node.module == "bs4":
            found |= {alias.asname or alias.name for alias in node.names if alias.name == "BeautifulSoup"}
    return found


def _is_maker(func: ast.expr, makers: set[str]) -> bool:
    if isinstance(func, ast.Name):
        return func.id in makers
    bs4 = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in makers
    return bs4 and isinstance(func, ast.Attribute) and func.attr == "BeautifulSoup"


def _dotted_tags(nodes: Iterable[ast.AST]) -> bool:
    """`soup.title`, `soup.body.p`: an element by its tag's name."""
    tags = {"title", "body", "head", "p", "a", "div", "span", "h1", "h2", "table", "tr", "td", "ul", "li", "form"}
    return any(isinstance(node, ast.Attribute) and node.attr in tags for node in nodes)
