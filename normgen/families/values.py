"""A config.json beside the table: each value from the one or the other, or an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from normgen.errors import NormgenError, Problem
from normgen.families.expressions import Lookup, evaluate, keys
from normgen.families.table import Family


@dataclass
class Values:
    """The config values of one family.

    ``where`` names the config in problems, ``prefix`` the nested config that this is.
    A ``strict`` config takes no default: the table's are those of another model.
    ``assumed`` collects the defaults that were taken.
    """

    family: Family
    config: dict[str, Any]
    where: str
    prefix: str = ""
    strict: bool = False
    parts: dict[str, Values] = field(default_factory=dict)
    assumed: dict[str, Any] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        """The value of a key; a key of a nested config is dotted."""
        outer, dot, inner = key.partition(".")
        if dot:
            return self._inside(outer, inner)
        given = self._given(key)
        if given is not None and not (given == "auto" and key in self.family.rules):
            return given
        if key not in self.config and key in self.family.defaults:
            return self._assume(key, self.family.defaults[key])
        if rule := self.family.rules.get(key):
            return self._assume(key, self._evaluate(rule, self.get))
        part = self.family.parts.get(key)
        if key not in self.config and not (part and part.optional):
            self.missing(key)
        return None

    def _given(self, key: str) -> Any:
        """What the config says of a key, by this name or by another one."""
        names = (key, *self.family.aliases.get(key, ()))
        found = (self.config.get(name) for name in names)
        return next((value for value in found if value is not None), None)

    def _inside(self, key: str, inner: str) -> Any:
        """A value of a nested config, or the different ones of a table by layer."""
        if key in self.parts:
            return self.parts[key].get(inner)
        by_layer = self.get(key)
        if not isinstance(by_layer, dict):
            self.fail(key, f"expected a table by layer, got {by_layer!r}")
        if not all(isinstance(of_layer, dict) for of_layer in by_layer.values()):
            return self._nested(key, by_layer, inner)
        found = [of_layer.get(inner) for of_layer in by_layer.values()]
        return list(dict.fromkeys(value for value in found if value is not None))

    def _nested(self, key: str, config: dict[str, Any], inner: str) -> Any:
        """A value of a nested config that the table does not know."""
        if inner not in config:
            self.missing(f"{key}.{inner}")
        return config[inner]

    def _assume(self, key: str, value: Any) -> Any:
        if self.strict:
            self.missing(key)
        self.assumed[self.prefix + key] = value
        return value

    def holds(self, condition: str) -> bool:
        """Whether a condition on config keys is true."""
        return bool(self._evaluate(condition, self.get))

    def lengths(self, size: str, stages: str | None, omit: int) -> list[int]:
        """The row lengths that an expression gives, each once, in order."""
        if stages is None:
            found = self._lengths(size, {})
        else:
            count = len(self._list(stages)) - omit
            found = [n for i in range(count) for n in self._lengths(size, {"stage": i})]
        return list(dict.fromkeys(found))

    def _lengths(self, size: str, known: dict[str, int]) -> list[int]:
        value = self._evaluate(
            size, lambda key: known[key] if key in known else self.get(key)
        )
        values = value if isinstance(value, list) else [value]
        for each in values:
            if not isinstance(each, int) or isinstance(each, bool) or each < 1:
                self.fail(size, f"expected a positive integer, got {each!r}")
        if not values:
            self.fail(size, "expected a positive integer, got an empty list")
        return values

    def _evaluate(self, expression: str, lookup: Lookup) -> Any:
        try:
            return evaluate(expression, lookup)
        except ValueError:
            self.fail(expression, "is neither a number nor made of config keys")
        except (ArithmeticError, LookupError, TypeError):
            read = ", ".join(f"{key} {lookup(key)!r}" for key in keys(expression))
            self.fail(expression, f"cannot be made of {read}")

    def _list(self, key: str) -> list[Any]:
        value = self.get(key)
        if not isinstance(value, list):
            self.fail(key, f"expected a list, got {value!r}")
        return value

    def full(self, expression: str) -> str:
        """An expression with the whole path of every key."""
        for key in keys(expression) if self.prefix else ():
            expression = re.sub(rf"(?<![\w.]){key}\b", self.prefix + key, expression)
        return expression

    def eps(self, eps: str | float) -> float:
        """A number: the one given, or the value of a key."""
        value = self.get(eps) if isinstance(eps, str) else eps
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(str(eps), f"expected a number, got {value!r}")
        if not 0 < value <= 1:
            self.fail(str(eps), f"expected a number above 0, at most 1, got {value!r}")
        return float(value)

    def missing(self, key: str) -> NoReturn:
        """Fail for a key that is absent and has no default that could be taken."""
        if self.config:
            self.fail(key, "the config has no such key, and its value is not guessed")
        self.fail(key, "it has no default; --from reads it from a config.json")

    def fail(self, key: str, message: str) -> NoReturn:
        raise NormgenError(Problem(self.where, f"{self.prefix}{key}: {message}"))
