"""Rules with a statement, a check and advice, for the contracts of detectors and learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

__all__ = ["ContractError", "Rules"]


class ContractError(AssertionError):
    """A rule of a contract is broken: the message has the rule, what was found, and how to fix it."""

    def __init__(self, subject: str, rule: str, found: str, advice: str) -> None:
        super().__init__(f"{subject} breaks a rule: {rule}\n  found: {found}\n  fix:   {advice}")


class Named(Protocol):
    """The class under test."""

    @property
    def subject(self) -> str:
        """Its name in messages."""


CaseT = TypeVar("CaseT", bound=Named)


class Rules(Generic[CaseT]):
    """The rules of one contract, in the order in which they are checked."""

    def __init__(self) -> None:
        self._rules: list[tuple[str, str, Callable[[CaseT], str | None]]] = []

    def rule(
        self, statement: str, advice: str
    ) -> Callable[[Callable[[CaseT], str | None]], Callable[[CaseT], str | None]]:
        """Add a rule; the function returns what it found if that breaks the rule, else None."""

        def add(function: Callable[[CaseT], str | None]) -> Callable[[CaseT], str | None]:
            self._rules.append((statement, advice, function))
            return function

        return add

    def check(self, case: CaseT) -> None:
        """Raise :class:`ContractError` at the first rule that is broken. An exception inside a check breaks it too."""
        for statement, advice, function in self._rules:
            try:
                found = function(case)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
                raise ContractError(case.subject, statement, message, advice) from error
            if found is not None:
                raise ContractError(case.subject, statement, found, advice)
