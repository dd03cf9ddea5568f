"""Writes the tables of operations in docs/rules.md from bilrp.trace.operation_table: python docs/make_rules.py"""

from __future__ import annotations

import re
from pathlib import Path

from bilrp.trace.operation import DefaultRule, Op, OpKind
from bilrp.trace.operation_table import OPERATIONS

PAGE = Path(__file__).with_name("rules.md")


def listed(*kinds: OpKind, rule: DefaultRule | None = None, factor: str | None = None) -> str:
    """The names of rows of these kinds (all, if none is given), with this rule or factor."""
    rows = [row for row in OPERATIONS.ops if not kinds or row.kind in kinds]
    rows = [row for row in rows if rule in (None, row.rule) and factor in (None, row.factor)]
    return " ".join(f"`{name}`" for row in rows for name in shown(row))


def shown(row: Op) -> list[str]:
    """The row's name, and those of its other names a reader would look for."""
    return [row.name, *(n for n in row.aliases if not n.startswith("_") and not n.endswith("_with_indices"))]


def covered() -> str:
    """Operations with a default rule."""
    evident = (
        f"where one factor is evidently a scale (it comes from {listed(factor='scale')}), attention weights "
        f"({listed(factor='attention')}) or, beside neither, a gate ({listed(factor='gate')}, or the f(x) of a "
        "written-out x·f(x)); of a quotient, the denominator"
    )
    constant = f"{listed(rule='product')} {listed(rule='quotient')} {listed('product', rule='linear')} {listed('weighted')}"
    rows = [
        ("`gate`", "diag(1[a > 0])", listed(rule="gate")),
        (
            "`frozen`, activations with f(0) = 0",
            "diag(f(a)/a), f'(0) at a = 0",
            listed("activation", rule="frozen"),
        ),
        ("`frozen`, norms", "centring live, 1/std frozen", listed("norm", "statistics")),
        ("`frozen`, attention", "y = P V, softmax weights P frozen", listed("attention")),
        ("written out", "each of the calls it is made of by its own rule", listed("fused")),
        ("`select`", "the winner; ties share equally", listed(rule="select")),
        (
            "`clamp`",
            "f(a)/a where the range contains 0; else the identity inside it",
            listed(rule="clamp"),
        ),
        (
            "`product`",
            "one of two live factors frozen",
            f"{listed(rule='product')} {listed(rule='quotient')}, {evident}",
        ),
        ("`linear`, products with a constant", "the call itself", constant),
        (
            "`linear`, sums",
            "the call itself",
            f"{listed('arithmetic', rule='linear')} {listed('reduction', 'linear')}",
        ),
        ("`linear`, writes", "of numbers put in one place, the one that stays", listed("write", "overwrite")),
        ("`linear`, moves", "the call itself", listed("structural", "identity", "random")),
    ]
    return table(("rule", "J", "operations"), rows)


def uncovered() -> str:
    """Operations that need a choice, or cannot be explained."""
    rows = [
        (
            f"{listed('elementwise_nonzero', 'softmax')} as the last word (not as a gate or inside attention)",
            "f(0) ≠ 0, or every output depends on every input: no scale to freeze",
            "`rules.jacobian()`, or explain the layer before",
        ),
        (
            f"{listed('distance')} as features",
            "quadratic in the input",
            "`rules.jacobian()`; a norm written as x / x.norm() is fine, its denominator is frozen",
        ),
        (
            f"{listed(rule='product')} of two live tensors with no evident gate",
            "freezing one or the other gives different explanations",
            "`rules.product(freeze=0)` or `freeze=1`",
        ),
        (listed("nonlinear"), "no accepted rule", "`rules.jacobian()`"),
        (listed("recurrent"), "one fused call", "write the cell out of linear steps, gates and products"),
        (
            "`embedding` of token ids",
            "ids carry no numbers to share",
            "explain the model from its input embeddings",
        ),
        (
            "`fft_fft` and others that make complex numbers",
            "no rule speaks of them",
            "a rotation by cos and sin, a transform by its matrix",
        ),
    ]
    return table(("operations", "why", "a way out"), rows)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        f"| {' | '.join(line)} |".replace("| --- | --- | --- |", "|---|---|---|") for line in lines
    )


def page(text: str) -> str:
    """The page with its tables made anew."""
    for name, made in (("covered", covered()), ("uncovered", uncovered())):
        text = re.sub(
            rf"<!-- {name} -->\n.*?\n\n", lambda _, n=name, m=made: f"<!-- {n} -->\n{m}\n\n", text, flags=re.S
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
