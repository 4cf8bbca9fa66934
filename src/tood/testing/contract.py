"""Rules with a statement, a check and advice, for the contracts of detectors and learners."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar


class ContractError(AssertionError):
    """A rule of a contract is broken: the message has the rule, what was found, and how to fix it."""

    def __init__(self, subject: str, rule: str, found: str, advice: str) -> None:
        super().__init__(f"{subject} breaks a rule: {rule}\n  found: {found}\n  fix:   {advice}")


CaseT = TypeVar("CaseT")


Check = Callable[[CaseT], "str | None"]


class Rules(Generic[CaseT]):
    """The rules of one contract, in the order in which they are checked."""

    def __init__(self) -> None:
        self._rules: list[Check[CaseT]] = []

    def rule(self, check: Check[CaseT]) -> Check[CaseT]:
        """Add a rule: a function that describes the violation, or returns None if the rule holds.

        Its docstring is the rule, an empty line, and the advice to those who break it.
        """
        self._rules.append(check)
        return check

    def check(self, case: CaseT, subject: str) -> None:
        """Raise :class:`ContractError` at the first broken rule; an exception inside a check breaks its rule.

        ``subject`` is the name of the class under test in messages.
        """
        for rule in self._rules:
            try:
                found, cause = rule(case), None
            except Exception as error:
                found, cause = f"{type(error).__name__}: {error}", error
            if found is not None:
                statement, _, advice = (" ".join(part.split()) for part in (rule.__doc__ or "").partition("\n\n"))
                raise ContractError(subject, statement, found, advice) from cause


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
