"""Write the tables of operations in docs/rules.md from bilrp.trace.operation_table: python docs/make_rules.py"""

from __future__ import annotations

import re
from pathlib import Path

from bilrp.trace.operation import DefaultRule, Op, OpKind
from bilrp.trace.operation_table import OPERATIONS

PAGE = Path(__file__).with_name("rules.md")


def list_names(*kinds: OpKind, rule: DefaultRule | None = None, factor: str | None = None) -> str:
    """Format the names of all operations of these kinds (default: all), with this rule or factor."""
    rows = [row for row in OPERATIONS.ops if not kinds or row.kind in kinds]
    rows = [row for row in rows if rule in (None, row.rule) and factor in (None, row.factor)]
    return " ".join(f"`{name}`" for row in rows for name in display_names(row))


def display_names(row: Op) -> list[str]:
    """Return the name of an operation and the aliases that a reader would look for."""
    return [row.name, *(n for n in row.aliases if not n.startswith("_") and not n.endswith("_with_indices"))]


def covered_table() -> str:
    """Return the table of operations with a default rule."""
    evident = (
        f"where one factor is evidently a scale (it comes from {list_names(factor='scale')}), attention weights "
        f"({list_names(factor='attention')}) or, if neither, a gate ({list_names(factor='gate')}, or the f(x) of a "
        "written-out x·f(x)); in a quotient, the denominator"
    )
    products = f"{list_names(rule='product')} {list_names(rule='quotient')}"
    constant = f"{products} {list_names('product', rule='linear')} {list_names('weighted')}"
    rows = [
        ("`gate`", "diag(1[a > 0])", list_names(rule="gate")),
        (
            "`frozen`, activations with f(0) = 0",
            "diag(f(a)/a), f'(0) at a = 0",
            list_names("activation", rule="frozen"),
        ),
        ("`frozen`, norms", "centring live, 1/std detached", list_names("norm", "statistics")),
        ("`frozen`, attention", "y = P V, softmax weights P detached", list_names("attention")),
        ("decomposed", "the calls it consists of, each by its own rule", list_names("fused")),
        ("`select`", "the winner; ties share equally", list_names(rule="select")),
        (
            "`clamp`",
            "f(a)/a where the range contains 0; else the identity inside it",
            list_names(rule="clamp"),
        ),
        (
            "`product`",
            "one of two live factors detached",
            f"{products}, {evident}",
        ),
        ("`linear`, products with a constant", "the call itself", constant),
        (
            "`linear`, sums",
            "the call itself",
            f"{list_names('arithmetic', rule='linear')} {list_names('reduction', 'linear')}",
        ),
        ("`linear`, writes", "of values written to one place, the last", list_names("write", "overwrite")),
        ("`linear`, moves", "the call itself", list_names("structural", "identity", "random")),
    ]
    return table(("rule", "J", "operations"), rows)


def uncovered_table() -> str:
    """Return the table of operations without a default rule."""
    rows = [
        (
            f"{list_names('elementwise_nonzero', 'softmax')} as the output (not as a gate or inside attention)",
            "f(0) ≠ 0, or every output depends on every input: no scale to detach",
            "`rules.jacobian()`, or explain the layer before",
        ),
        (
            f"{list_names('distance')} as features",
            "quadratic in the input",
            "`rules.jacobian()`; a norm written as x / x.norm() is fine, its denominator is detached",
        ),
        (
            f"{list_names(rule='product')} of two live tensors with no evident gate",
            "detaching one or the other gives different explanations",
            "`rules.product(freeze=0)` or `freeze=1`",
        ),
        (list_names("nonlinear"), "no accepted rule", "`rules.jacobian()`"),
        (list_names("recurrent"), "one fused call", "write the cell with linear steps, gates and products"),
        (
            "`embedding` of token ids",
            "ids have no values to distribute",
            "start from the embeddings: `Encoder(input_layer=…)`",
        ),
        (
            "`fft_fft` and others that make complex numbers",
            "no rule covers them",
            "a rotation by cos and sin, a transform by its matrix",
        ),
    ]
    return table(("operations", "why", "fix"), rows)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        f"| {' | '.join(line)} |".replace("| --- | --- | --- |", "|---|---|---|") for line in lines
    )


def update_page(text: str) -> str:
    """Return the page with both tables replaced."""
    for name, rows in (("covered", covered_table()), ("uncovered", uncovered_table())):
        text = re.sub(
            rf"<!-- {name} -->\n.*?\n\n", lambda _, n=name, r=rows: f"<!-- {n} -->\n{r}\n\n", text, flags=re.S
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text()))
