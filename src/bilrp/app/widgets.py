"""Notebook widgets (`bilrp[notebook]`): the JavaScript of the page and the app, with the selection as a traitlet."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bilrp.app import analyses
from bilrp.app.analyses import VectorSpec
from bilrp.app.collection_session import ITEMS_PER_PAGE, CollectionSession
from bilrp.errors import BilrpError, describe_error, import_optional
from bilrp.inputs import Image
from bilrp.render import bundle, page

if TYPE_CHECKING:
    from anywidget import AnyWidget

    from bilrp.collection import Collection
    from bilrp.explanation import Explanation
    from bilrp.render.links import Style

    class SelectionWidget(AnyWidget):
        selected: dict[str, Any]

    class ExplanationWidget(SelectionWidget):
        payload: dict[str, Any]


MODULES = ("heat", "board", "notebook")
MAX_IMAGE_SIDE_PIXELS = 640
_IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const )", re.MULTILINE)
_EXPORTED_NAMES = re.compile(r"^export (?:async )?(?:function|const) (\w+)", re.MULTILINE)
NOTEBOOK_CSS = """
.notebook { font: 14px/1.5 var(--sans); background: var(--paper); color: var(--ink); padding: 14px; overflow: auto; max-height: 760px; container-type: inline-size; }
@container (max-width: 640px) { .notebook .split { grid-template-columns: minmax(0, 1fr); } }
.notebook * { box-sizing: border-box; }
.notebook :is(p, ul, ol) { margin: 0; padding: 0; list-style: none; }
.notebook .near { grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); margin: 10px 0; }
.notebook .near .shown > :is(img, svg.heat) { height: 96px; }
.notebook button { font: inherit; color: inherit; background: none; border: 1px solid var(--rule); border-radius: 4px; }
.notebook button.open { width: 100%; border: 0; padding: 0; text-align: left; cursor: pointer; }
"""  # noqa: E501


def _read_asset(name: str) -> str:
    return resources.files("bilrp.app").joinpath("web", name).read_text("utf-8")


@cache
def build_script(entry: str) -> str:
    """Bundle one ES module whose default export renders `entry`; each module of the app gets its own scope."""
    scripts = [bundle.bundle_script("mount")]
    for name in MODULES:
        text = _read_asset(f"{name}.js")
        names = ", ".join(_EXPORTED_NAMES.findall(text))
        body = _EXPORT.sub("", _IMPORT.sub("", text))
        scripts.append(f"const {{ {names} }} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();\n")
    return "".join(scripts) + f"export default {{ render: {entry} }};\n"


def _make_widget_class(entry: str, **traits: Callable[[ModuleType], Any]) -> Any:
    """Return a widget class with these traitlets and `selected`."""
    anywidget = import_optional("anywidget", "notebook", "widgets")
    traitlets = import_optional("traitlets", "notebook", "widgets")
    members = {"_esm": build_script(entry), "selected": traitlets.Dict().tag(sync=True)}
    members |= {name: kind(traitlets).tag(sync=True) for name, kind in traits.items()}
    return type(f"{entry.capitalize()}Widget", (anywidget.AnyWidget,), members)


def make_explanation_widget(
    explanation: Explanation,
    *,
    title: str | None = None,
    style: str | Style | None = None,
    names: tuple[str, str] | None = None,
    special_tokens: bool = False,
) -> ExplanationWidget:
    """Return the page of an explanation as a widget; `widget.selected` is {side, regions, …} of the pinned regions.

    Args:
        explanation: What to show.
        title, style, names, special_tokens: As for `render.page.build_payload`.
    """
    kind = _make_widget_class("explanation", payload=lambda t: t.Dict())
    payload = page.build_payload(
        explanation, title=title, style=style, names=names, special_tokens=special_tokens
    )
    return kind(payload=payload | {"palette": "paper", "compact": True})


def make_collection_widget(collection: Collection) -> SelectionWidget:
    """Return a widget to browse a collection; `widget.selected` is {id, part, without} of the open item."""
    kind = _make_widget_class("collection", styles=lambda t: t.Unicode())
    widget = kind(styles=_read_asset("views.css") + NOTEBOOK_CSS)
    handlers = _make_handlers(CollectionSession(collection))

    def on_message(_: object, content: dict[str, Any], __: object) -> None:
        number = content.get("number")
        try:
            widget.send(
                {"number": number, "answer": handlers[content["what"]](content.get("question") or {})}
            )
        except BilrpError as error:
            widget.send({"number": number, "error": str(error)})
        except Exception as error:  # shown in the widget: the kernel's log is not visible
            widget.send({"number": number, "error": f"{type(error).__name__}: {describe_error(error)}"})

    widget.on_msg(on_message)
    return widget


def _make_handlers(session: CollectionSession) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Return the functions that answer the widget's messages, by name."""

    def parse_spec(body: dict[str, Any]) -> VectorSpec:
        part, without = tuple(body.get("part") or ()), tuple(body.get("without") or ())
        return VectorSpec(body["id"], part, without, session.collection.resolve_similarity(None))

    def items(body: dict[str, Any]) -> dict[str, Any]:
        start, total = max(int(body.get("offset", 0)), 0), len(session.collection)
        stop = start + min(int(body.get("limit", ITEMS_PER_PAGE)), ITEMS_PER_PAGE)
        labels = [session.label(p) for p in range(total)[start:stop]]
        return {"total": total, "text": session.is_text, "items": labels}

    def picture(key: str, *, large: bool = False) -> str | None:
        if session.is_text:
            return None
        raw = session.picture(key, MAX_IMAGE_SIDE_PIXELS) if large else session.thumbnail(key)
        return f"data:image/jpeg;base64,{base64.b64encode(raw).decode()}"

    def heat(body: dict[str, Any]) -> dict[str, Any]:
        against = [parse_spec(target) for target in body["against"]]
        return analyses.compute_attribution(session, body["id"], against) | {"src": picture(body["id"])}

    return {
        "items": items,
        "thumbnail": lambda body: picture(body["id"]),
        "side": lambda body: {
            "side": analyses.describe_item(session, body["id"]),
            "src": picture(body["id"], large=isinstance(session.view(body["id"]), Image)),
        },
        "neighbours": lambda body: analyses.find_neighbours(
            session, parse_spec(body), int(body.get("k", 12))
        ),
        "heat": heat,
    }
