# SPDX-License-Identifier: Apache-2.0
"""Conditions on jobs, such as ``run_time > 3600 and processors <= 64``, evaluated over whole columns.

The grammar is a subset of Python's: numbers, names of fields, ``+ - * / // %``, comparisons (also chained), ``in`` and
``not in`` with a list of numbers, ``and``, ``or``, ``not``, parentheses. Python's parser makes the tree; only the kinds
of nodes named here are evaluated, and the text is never executed.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from drom.workloads.errors import WorkloadError, short
from drom.workloads.fields import NAMES
from drom.workloads.workload import Bools, Floats, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 1000
LARGEST = 10**15
_EXAMPLE = "write for example run_time > 3600 and processors <= 64"

Column = Bools | Floats

DERIVED: dict[str, Callable[[Workload], Floats]] = {
    "processors": lambda log: log.processors.astype(np.float64),
    "start": lambda log: (log.submit + np.maximum(log.wait, 0)).astype(np.float64),
    "end": lambda log: (log.submit + np.maximum(log.wait, 0) + np.maximum(log.run_time, 0)).astype(np.float64),
    "accuracy": lambda log: np.where(log.requested_time > 0, log.run_time / np.maximum(log.requested_time, 1), np.nan),
    "area": lambda log: np.maximum(log.processors, 0) * np.maximum(log.run_time, 0).astype(np.float64),
}
"""The names available besides the fields. `accuracy` is run time over requested time, `area` processor-seconds."""

_ARITHMETIC: dict[type[ast.operator], Callable[[Floats, Floats], Floats]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Floats, Floats], Bools]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.In: np.isin,
    ast.NotIn: lambda column, numbers: ~np.isin(column, numbers),
}


def matching(workload: Workload, condition: str) -> Bools:
    """Return the mask, of shape ``(jobs,)``, of jobs that meet the condition. Unknown values compare as -1.

    A comparison with an undefined value (a division by zero, the accuracy of a job without requested time) does not
    hold, except ``!=``. Raises WorkloadError with the error and its place.
    """
    try:
        with np.errstate(all="ignore"):
            result = _Evaluation(workload, condition).of(_tree(condition))
    except RecursionError:
        _fail(condition, "is nested too deeply", "use fewer parentheses and signs")
    if result.dtype != np.bool_:
        _fail(condition, "is a number, not a condition", _EXAMPLE)
    return np.broadcast_to(np.asarray(result, dtype=np.bool_), (len(workload),))


def _tree(condition: str) -> ast.expr:
    if len(condition) > LONGEST:
        _fail(condition, f"is longer than {LONGEST} characters", "use several conditions")
    try:
        return ast.parse(condition.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError):
        _fail(condition, "cannot be read", f"{_EXAMPLE} (equality is ==)")


def _fail(condition: str, fault: str, advice: str) -> NoReturn:
    msg = f"The condition {short(condition, 60)} {fault}: {advice}."
    raise WorkloadError(msg)


class _Evaluation:
    """Evaluates the tree of one condition over the columns of one workload."""

    def __init__(self, workload: Workload, condition: str) -> None:
        self.workload = workload
        self.condition = condition

    def of(self, node: ast.expr) -> Column:
        if isinstance(node, ast.Constant):
            return self.constant(node)
        match node:
            case ast.BoolOp(op=op, values=values):
                parts = np.broadcast_arrays(*(self.truth(value) for value in values))
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                result: Column = join.reduce(parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                result = ~self.truth(operand)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                result = -self.number(operand)
            case ast.Compare():
                result = self.comparison(node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                result = _ARITHMETIC[type(op)](self.number(left), self.number(right))
            case ast.Name(id=name):
                result = self.column(name)
            case _:
                self.refuse(node)
        return result

    def constant(self, node: ast.Constant) -> Floats:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            self.refuse(node)
        if abs(node.value) > LARGEST:
            _fail(self.condition, f"has a number beyond {LARGEST:,}", "write a smaller one")
        return np.array([node.value], dtype=np.float64)

    def text(self, node: ast.expr) -> str:
        return short(ast.get_source_segment(self.condition.strip(), node) or "")

    def refuse(self, node: ast.expr) -> NoReturn:
        _fail(self.condition, f"has a part that is not understood, {self.text(node)}", _EXAMPLE)

    def truth(self, node: ast.expr) -> Bools:
        value = self.of(node)
        if value.dtype != np.bool_:
            _fail(self.condition, f"joins {self.text(node)}, a number, as if it were a condition", _EXAMPLE)
        return np.asarray(value, dtype=np.bool_)

    def number(self, node: ast.expr) -> Floats:
        value = self.of(node)
        if value.dtype == np.bool_:
            _fail(self.condition, f"calculates with {self.text(node)}, a condition", _EXAMPLE)
        return np.asarray(value, dtype=np.float64)

    def comparison(self, node: ast.Compare) -> Bools:
        result = np.ones(1, dtype=np.bool_)
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                other = self.numbers(right)
            elif type(op) in _COMPARISONS:
                other = self.number(right)
            else:
                _fail(self.condition, "uses is or is not", "compare with == and !=")
            result = result & _COMPARISONS[type(op)](self.number(left), other)
            left = right
        return result

    def numbers(self, node: ast.expr) -> Floats:
        elements = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
        if elements == [node] or any(isinstance(part, ast.Name) for part in elements):
            _fail(self.condition, "has no list of numbers after in", "write for example user in (3, 7)")
        return np.array([self.number(part)[0] for part in elements])

    def column(self, name: str) -> Floats:
        if name in DERIVED:
            return DERIVED[name](self.workload)
        if name not in NAMES:
            known = ", ".join((*NAMES, *DERIVED))
            _fail(self.condition, f"asks for {short(name)}, which no job has", f"choose from {known}")
        return np.asarray(getattr(self.workload, name), dtype=np.float64)
