"""An index over a directory, and all that it lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airloop_view.folder import Folder
from airloop_view.index import Index
from airloop_view.search import Filter, Lists
from airloop_view.store import Store


def index_of(root: Path) -> tuple[Index, Lists]:
    folder = Folder(root)
    store = Store(folder.root)
    index = Index(folder, store)
    index.update()
    return index, Lists(store)


def close(index: Index) -> None:
    index.parser.close()
    index.store.close()


def everything(lists: Lists, **chosen: Any) -> list[dict[str, Any]]:
    total, rows = lists.page(Filter(**chosen), 0, 500)
    assert len(rows) == total
    return rows
