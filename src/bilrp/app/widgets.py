"""Notebook widgets (`bilrp[notebook]`): the page's and the app's own modules, with what is chosen as a traitlet."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from bilrp.app import analyses
from bilrp.app.analyses import Asked
from bilrp.app.collection_session import PAGE, Shelf
from bilrp.errors import BilrpError, from_extra, reason
from bilrp.inputs import Image
from bilrp.render import bundle, page

if TYPE_CHECKING:
    from bilrp.collection import Collection
    from bilrp.explanation import Explanation

MODULES = ("heat", "board", "notebook")
LONGEST = 640  # pixels of a picture in a notebook
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const )", re.MULTILINE)
_NAMES = re.compile(r"^export (?:async )?(?:function|const) (\w+)", re.MULTILINE)
STYLE = """
.notebook { font: 14px/1.5 var(--sans); background: var(--paper); color: var(--ink); padding: 14px; overflow: auto; max-height: 760px; container-type: inline-size; }
@container (max-width: 640px) { .notebook .split { grid-template-columns: minmax(0, 1fr); } }
.notebook * { box-sizing: border-box; }
.notebook :is(p, ul, ol) { margin: 0; padding: 0; list-style: none; }
.notebook .near { grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); margin: 10px 0; }
.notebook .near .shown > :is(img, svg.heat) { height: 96px; }
.notebook button { font: inherit; color: inherit; background: none; border: 1px solid var(--rule); border-radius: 4px; }
.notebook button.open { width: 100%; border: 0; padding: 0; text-align: left; cursor: pointer; }
"""  # noqa: E501


def _text(name: str) -> str:
    return resources.files("bilrp.app").joinpath("web", name).read_text("utf-8")


@cache
def script(entry: str) -> str:
    """One ES module whose default export renders `entry`: the page's modules, then each of the app's in its own scope."""
    made = [bundle.script("mount")]
    for name in MODULES:
        text = _text(f"{name}.js")
        names = ", ".join(_NAMES.findall(text))
        body = _EXPORT.sub("", _IMPORT.sub("", text))
        made.append(f"const {{ {names} }} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();\n")
    return "".join(made) + f"export default {{ render: {entry} }};\n"


def _widget(entry: str, **traits: Any) -> Any:
    """A widget class with these traitlets, and what is chosen."""
    anywidget = from_extra("anywidget", "notebook", "widgets")
    traitlets = from_extra("traitlets", "notebook", "widgets")
    made = {"_esm": script(entry), "selected": traitlets.Dict().tag(sync=True)}
    made |= {name: kind(traitlets).tag(sync=True) for name, kind in traits.items()}
    return type(f"{entry.capitalize()}Widget", (anywidget.AnyWidget,), made)


def of_explanation(found: Explanation, **options: Any) -> Any:
    """The page of one explanation as a widget: `widget.selected` is {side, regions, …} of what is pinned."""
    kind = _widget("explanation", payload=lambda t: t.Dict())
    return kind(payload=page.payload(found, **options) | {"palette": "paper", "compact": True})


def of_collection(found: Collection) -> Any:
    """A collection to wander in: `widget.selected` is {id, part, without} of the item that is open."""
    kind = _widget("collection", styles=lambda t: t.Unicode())
    widget = kind(styles=_text("views.css") + STYLE)
    answers = _answers(Shelf(found))

    def heard(_: Any, content: dict[str, Any], __: Any) -> None:
        number = content.get("number")
        try:
            widget.send({"number": number, "answer": answers[content["what"]](content.get("question") or {})})
        except BilrpError as error:
            widget.send({"number": number, "error": str(error)})
        except Exception as error:  # shown where it was asked, not lost in a log
            widget.send({"number": number, "error": f"{type(error).__name__}: {reason(error)}"})

    widget.on_msg(heard)
    return widget


def _answers(shelf: Shelf) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """What a collection's widget may ask."""

    def asked(given: dict[str, Any]) -> Asked:
        return Asked(given["id"], tuple(given.get("part") or ()), tuple(given.get("without") or ()))

    def items(given: dict[str, Any]) -> dict[str, Any]:
        start = max(int(given.get("offset", 0)), 0)
        few = range(len(shelf.found))[start : start + min(int(given.get("limit", PAGE)), PAGE)]
        return {"total": len(shelf.found), "text": shelf.is_text, "items": [shelf.label(p) for p in few]}

    def picture(key: str, *, large: bool = False) -> str | None:
        if shelf.is_text:
            return None
        raw = shelf.picture(key, LONGEST) if large else shelf.thumbnail(key)
        return f"data:image/jpeg;base64,{base64.b64encode(raw).decode()}"

    def heat(given: dict[str, Any]) -> dict[str, Any]:
        made = analyses.heat(shelf, given["id"], [asked(each) for each in given["against"]])
        return made | {"src": picture(given["id"])}

    return {
        "items": items,
        "thumbnail": lambda given: picture(given["id"]),
        "side": lambda given: {
            "side": analyses.side(shelf, given["id"]),
            "src": picture(given["id"], large=isinstance(shelf.view(given["id"]), Image)),
        },
        "neighbours": lambda given: analyses.neighbours(shelf, asked(given), int(given.get("k", 12))),
        "heat": heat,
    }
