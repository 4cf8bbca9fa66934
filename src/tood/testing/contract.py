"""Rules with a statement, a check and advice, for the contracts of detectors and learners."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["ContractError", "Rules", "wrong_declarations"]


class ContractError(AssertionError):
    """A rule of a contract is broken: the message has the rule, what was found, and how to fix it."""

    def __init__(self, subject: str, rule: str, found: str, advice: str) -> None:
        super().__init__(f"{subject} breaks a rule: {rule}\n  found: {found}\n  fix:   {advice}")


CaseT = TypeVar("CaseT")


class Rules(Generic[CaseT]):
    """The rules of one contract, in the order in which they are checked."""

    def __init__(self) -> None:
        self._rules: list[tuple[str, str, Callable[[CaseT], str | None]]] = []

    def rule(
        self, statement: str, advice: str
    ) -> Callable[[Callable[[CaseT], str | None]], Callable[[CaseT], str | None]]:
        """Add a rule; the function returns a description of the violation, or None if the rule holds."""

        def add(function: Callable[[CaseT], str | None]) -> Callable[[CaseT], str | None]:
            self._rules.append((statement, advice, function))
            return function

        return add

    def check(self, case: CaseT, subject: str) -> None:
        """Raise :class:`ContractError` at the first broken rule; an exception inside a check breaks its rule.

        ``subject`` is the name of the class under test in messages.
        """
        for statement, advice, function in self._rules:
            try:
                found = function(case)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
                raise ContractError(subject, statement, message, advice) from error
            if found is not None:
                raise ContractError(subject, statement, found, advice)


def wrong_declarations(cls: Any, **checks: bool) -> str | None:
    """The class attributes that are missing or wrong: name, title, summary and those of ``checks``; None if none is."""
    checks = {
        "name": bool(re.fullmatch(r"[a-z0-9_]+", getattr(cls, "name", ""))),
        "title": bool(cls.title),
        **checks,
        "__doc__": bool(re.fullmatch(r"\S.*\.", (cls.__doc__ or "").partition("\n")[0])),
    }
    wrong = [f"{name} = {getattr(cls, name, 'nothing')!r}" for name, right in checks.items() if not right]
    return ", ".join(wrong) or None
