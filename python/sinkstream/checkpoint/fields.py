"""Checked access to the fields of an untrusted description (config.json, GGUF metadata)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, warn_caller

_MAX_TOKEN_ID = 2**31 - 1


class Fields:
    """A read-only view that refuses values of the wrong type or size. Null counts as absent."""

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str,
        prefix: str = "",
        other_names: Mapping[str, str] | None = None,
    ) -> None:
        """View `values` of the file `where`, each name with `prefix` before it.

        `other_names` are what the file calls some fields.
        """
        self.where = where
        self._values = values
        self._prefix = prefix
        self._other_names = other_names or {}

    def renamed(self, other_names: Mapping[str, tuple[str, ...]]) -> Fields:
        """Return the same fields for a file that may use other names for some of them.

        Args:
            other_names: For each of our names, the names to look for if the file lacks it; errors
                about an absent field use the first of them.
        """
        found = {}
        for ours, others in other_names.items():
            present = [name for name in (ours, *others) if self.has(name)]
            found[ours] = self.name(present[0] if present else others[0])[len(self._prefix) :]
        return Fields(self._values, self.where, self._prefix, {**self._other_names, **found})

    def with_defaults(self, defaults: Mapping[str, Any]) -> Fields:
        """Return the same fields, with these values for absent ones."""
        absent = {self.name(name): value for name, value in defaults.items() if not self.has(name)}
        return Fields({**self._values, **absent}, self.where, self._prefix, self._other_names)

    def without(self, *names: str) -> Fields:
        """Return the same fields as if these were absent."""
        left = {name: value for name, value in self._values.items() if name not in names}
        return Fields(left, self.where, self._prefix, self._other_names)

    def without_prefix(self) -> Fields:
        """Return all fields of the file, by their own names."""
        return Fields(self._values, self.where)

    def has(self, name: str) -> bool:
        """Return whether there is a value."""
        return self._values.get(self.name(name)) is not None

    def is_null(self, name: str) -> bool:
        """Return whether the value is an explicit null."""
        return self.name(name) in self._values and not self.has(name)

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer in [low, high]; without a default the field is required."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(name, f"be an integer from {low} to {high}", value)
        return value

    def per_layer(
        self, name: str, layers: int, low: int, high: int, default: int | None = None
    ) -> int:
        """Return an integer in [low, high], which may be given as a list of equal integers."""
        value = self._get(name, default)
        if not isinstance(value, list):
            return self.whole(name, low, high, default)
        first = value[0] if value else None
        is_number = type(first) is int and low <= first <= high
        if not is_number or len(value) != layers or any(other != first for other in value):
            rule = f"be an integer from {low} to {high}, or a list of {layers} equal integers"
            raise self.error(name, rule, value)
        return value[0]  # type: ignore[no-any-return]

    def token_ids(self, name: str) -> list[int]:
        """Return one or several token ids as a list; warn of others, and leave them out.

        An end token that cannot be generated has no effect, in transformers either.
        """
        value = self._get(name, [])
        entries = value if isinstance(value, list) else [value]
        found = [entry for entry in entries if type(entry) is int and 0 <= entry <= _MAX_TOKEN_ID]
        if len(found) < len(entries):
            rule = f"be an integer or a list of integers from 0 to {_MAX_TOKEN_ID}"
            self.warn(name, rule, "Other entries are ignored.")
        return found

    def value(self, name: str) -> Any:
        """Return the value, unchecked; None if it is absent."""
        return self._get(name, None)

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """Return a finite number in [low, high]; without a default the field is required."""
        value = self._get(name, default)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not low <= value <= high
            or not math.isfinite(value)
        ):
            raise self.error(name, f"be a number from {low:g} to {high:g}", value)
        return float(value)

    def numbers(self, name: str, count: int, low: float, high: float) -> list[float]:
        """Return a list of `count` finite numbers in [low, high]."""
        value = self._get(name, None)
        is_list = isinstance(value, list) and len(value) == count
        if not is_list or any(
            not isinstance(each, int | float) or isinstance(each, bool) or not low <= each <= high
            for each in value
        ):
            raise self.error(name, f"be a list of {count} numbers from {low:g} to {high:g}", value)
        return [float(each) for each in value]

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return true or false; without a default the field is required."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "be true or false", value)
        return value

    def flags(self, name: str, count: int) -> list[bool] | None:
        """Return a list of `count` booleans; None if it is absent."""
        value = self._get(name, None)
        is_list = isinstance(value, list) and len(value) == count
        if value is not None and not (is_list and all(type(each) is bool for each in value)):
            raise self.error(name, f"be a list of {count} booleans", value)
        return value  # type: ignore[no-any-return]

    def word(self, name: str, default: str | None = None) -> str:
        """Return a string; without a default the field is required."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, "be a string", value)
        return value

    def group(self, name: str) -> Fields | None:
        """Return the fields of a nested object, or None if it is absent or empty."""
        value = self._get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(name, "be an object", value)
        return Fields(value, f"{self.where}, `{self.name(name)}`") if value else None

    def name(self, name: str) -> str:
        """Return the field's name as the file has it, with the prefix."""
        return self._prefix + self._other_names.get(name, name)

    def names(self) -> list[str]:
        """Return the names of all fields that have a value."""
        return [
            name.removeprefix(self._prefix)
            for name, value in self._values.items()
            if name.startswith(self._prefix) and value is not None
        ]

    def must_be(self, name: str, neutral: Any, reason: str = "") -> None:
        """Refuse every value but `neutral`; an absent field means `neutral` as well.

        For switches that change the arithmetic in a way that the decoder does not implement:
        ignoring them would compute a different model.
        """
        value = self._get(name, neutral)
        if value != neutral or isinstance(value, bool) != isinstance(neutral, bool):
            rule = "be absent" if neutral is None else f"be {quoted(neutral)} or absent"
            raise self.error(name, rule, value, reason)

    def words(self, name: str, count: int, choices: tuple[str, ...]) -> list[str] | None:
        """Return a list of `count` words, each one of the choices; None if it is absent."""
        value = self._get(name, None)
        if value is None:
            return None
        is_list = isinstance(value, list) and len(value) == count
        if not is_list or any(not isinstance(word, str) or word not in choices for word in value):
            rule = f"be a list of {count} words, each {' or '.join(map(quoted, choices))}"
            raise self.error(name, rule, value)
        return list(value)

    def indices(self, name: str, count: int) -> list[int]:
        """Return a list of integers in [0, count); empty if it is absent."""
        value = self._get(name, [])
        if not isinstance(value, list) or any(
            not isinstance(each, int) or isinstance(each, bool) or not 0 <= each < count
            for each in value
        ):
            raise self.error(name, f"be a list of integers from 0 to {count - 1}", value)
        return list(value)

    def all_must_be(self, name: str, word: str, reason: str = "") -> None:
        """Refuse a list with an element other than `word`; the field may be absent."""
        value = self._get(name, [])
        if not isinstance(value, list) or any(element != word for element in value):
            raise self.error(name, f"contain only {quoted(word)}", value, reason)

    def error(self, name: str, rule: str, value: Any = None, remedy: str = "") -> CheckpointError:
        """Return the error for a field that breaks a rule: what it must do or be.

        `value` is the default that was used, if the field is absent.
        """
        value = self._get(name, value)
        found = "is missing" if value is None else f"is {quoted(value)}"
        tail = f" {remedy}" if remedy else ""
        return CheckpointError(
            f"load: {self.where}: `{self.name(name)}` must {rule}, but {found}.{tail}"
        )

    def warn(self, name: str, rule: str, consequence: str) -> None:
        """Warn of a field that breaks a rule, and say what happens with its value."""
        warn_caller(str(self.error(name, rule, remedy=consequence)))

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(self.name(name))
        return default if value is None else value
