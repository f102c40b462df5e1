"""A compiled chat template that renders the same text in half the time: it is rendered anew with every request.

Templates are rendered in jinja's sandbox, which looks at whatever is asked of any object before it gives it, and most
of what they ask cannot be unsafe: how far a loop is, and what a message holds.
"""

from __future__ import annotations

from typing import Any

_COUNTS = frozenset({"first", "last", "index", "index0", "revindex", "revindex0", "length"})  # numbers, of a loop
_OF_DICTS = frozenset(dir(dict))  # what a dict has besides its items: the sandbox decides


def speed_up_template(template: str) -> None:
    """Changes what transformers keeps of a compiled template; nothing where it keeps it in another way."""
    from jinja2.runtime import LoopContext
    from transformers.utils import chat_template_utils

    compile_once: Any = getattr(chat_template_utils, "_compile_jinja_template", None)
    if compile_once is None or "getattr" in vars((compiled := compile_once(template)).environment):
        return
    compiled.globals = dict(compiled.globals)  # copied for each rendering: of a ChainMap, name by name in Python
    environment = compiled.environment
    attribute, item, undefined = environment.getattr, environment.getitem, environment.undefined

    def quick_attribute(obj: Any, name: str) -> Any:
        kind = type(obj)
        if kind is dict and name not in _OF_DICTS:
            return obj[name] if name in obj else undefined(obj=obj, name=name)
        return getattr(obj, name) if kind is LoopContext and name in _COUNTS else attribute(obj, name)

    def quick_item(obj: Any, key: Any) -> Any:
        if type(obj) is dict and type(key) is str:
            if key in obj:
                return obj[key]
            if key not in _OF_DICTS:
                return undefined(obj=obj, name=key)
        return item(obj, key)

    environment.getattr, environment.getitem = quick_attribute, quick_item
