"""Write the JSON Schemas of the answers from `bilrp.answers`: python docs/make_schemas.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import is_typeddict

from bilrp.answers import http_shapes, schema, shapes

FOLDER = Path(schema.__file__).parent / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
OPEN_SHAPES = {"SideAnswer"}  # keys depend on the kind of the item


def configure_shapes() -> None:
    """Let docstrings be descriptions, and allow no keys that a shape does not have."""
    for shape in (*vars(shapes).values(), *vars(http_shapes).values()):
        if is_typeddict(shape):
            extra = "allow" if shape.__name__ in OPEN_SHAPES else "forbid"
            shape.__pydantic_config__ = ConfigDict(use_attribute_docstrings=True, extra=extra)


def make_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of an answer."""
    configure_shapes()
    return {"$schema": DIALECT, "$id": f"bilrp/{name}/1", **TypeAdapter(shapes.ANSWERS[name]).json_schema()}


def make_components() -> dict[str, Any]:
    """Return the schemas of the HTTP API by name, as an OpenAPI document has them."""
    configure_shapes()
    named = {name: shape for name, shape in vars(http_shapes).items() if is_typeddict(shape)}
    named |= {"AuditAnswer": http_shapes.AuditAnswer, "ExplainAnswer": shapes.ExplainAnswer}
    inputs = [(name, "serialization", TypeAdapter(shape)) for name, shape in named.items()]
    references, rest = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    components = rest["$defs"]
    # a union has no class of its own, so that it is not among the definitions
    components |= {name: part for (name, _), part in references.items() if name not in components}
    return dict(sorted(components.items()))


def format_schema(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for each in schema.NAMES:
        (FOLDER / f"{each}.json").write_text(format_schema(make_schema(each)), encoding="utf-8")
    (FOLDER / "http.json").write_text(format_schema(make_components()), encoding="utf-8")
