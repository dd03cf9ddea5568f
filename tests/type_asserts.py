"""Narrows types for pyright, and fails a test where the value is not what it takes for granted."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

T = TypeVar("T")


def assert_not_none(value: T | None) -> T:
    """The value, which must not be None."""
    assert value is not None
    return value


def assert_instance(value: Any, kind: type[T]) -> T:
    """The value, which must be of this class."""
    assert isinstance(value, kind)
    return value


def assert_sequential(module: Any) -> nn.Sequential:
    """The module, which must be an `nn.Sequential`, to take layers of it by number."""
    return assert_instance(module, nn.Sequential)
