"""Base class of detectors: fit on outputs, score outputs; higher always means more in-distribution."""

from __future__ import annotations

import copy
import inspect
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from tood.arrays import FloatArray, back, is_finite
from tood.detectors.rows import FitData, Rows, head_arrays, read_rows
from tood.errors import NotFittedError, ToodError, UnknownNameError
from tood.outputs.outputs import Head, Outputs
from tood.partition import Partition
from tood.registry import Registry
from tood.storage.files import plain, read_tensors, write_tensors

__all__ = ["REGISTRY", "Detector", "FitData", "Rows", "choice", "flag", "number", "register", "setting"]

KIND = "tood-detector"
BLOCK = 1 << 18  # elements per block at score: temporaries of 1 MiB in float32 stay in the second-level cache
LARGEST_BLOCK = 1 << 24  # of a block of 256 rows: 64 MiB
WIDEST = 1 << 20  # columns or dimensions that a file may name

Self = TypeVar("Self", bound="Detector")


def setting(
    default: Any, allows: Callable[[Any], bool], expected: str, grid: tuple[Any, ...] = (), refit: bool = False
) -> Any:
    """Declare a hyper-parameter: its default, the values that it ``allows``, and how a message describes them.

    ``grid`` are the values that a search tries; ``refit`` says that ``fit`` reads it. A class that declares one becomes
    a dataclass: whatever else it annotates is a hyper-parameter too, unchecked.
    """
    return field(default=default, metadata={"allows": allows, "expected": expected, "grid": grid, "refit": refit})


def number(
    default: Any, low: float, high: float = 1 << 31, *, whole: bool = False, none: bool = False, **options: Any
) -> Any:
    """Declare a number (``whole`` or not) from ``low`` to ``high``, or None if ``none``; see :func:`setting`."""
    kinds = (int, np.integer) if whole else (int, float, np.number)

    def allows(value: Any) -> bool:
        if value is None:
            return none
        return isinstance(value, kinds) and not isinstance(value, bool) and bool(low <= value <= high)

    return setting(default, allows, f"a {'whole ' * whole}number from {low:g} to {high:g}", **options)


def choice(*words: str, searched: bool = True, refit: bool = False) -> Any:
    """Declare a hyper-parameter that is one of some words, by default the first; see :func:`setting`."""
    expected = f"one of {', '.join(map(repr, words))}"
    return setting(
        words[0], lambda value: isinstance(value, str) and value in words, expected, words if searched else (), refit
    )


def flag(default: bool, refit: bool = False) -> Any:
    """Declare a hyper-parameter that is True or False; see :func:`setting`."""
    return setting(default, lambda value: isinstance(value, (bool, np.bool_)), "True or False", refit=refit)


class Detector:
    """OOD detector: turns outputs into one score per sample; higher means more in-distribution.

    A subclass declares what it needs and implements ``_fit`` and ``_score`` (docs: Extend). ``__init__`` stores
    hyper-parameters and does nothing else: write it, or declare them as fields, ``k: int = number(10, low=1)``. What
    ``fit`` learned is in attributes that end in ``_``.
    :func:`tood.testing.check_detector` checks a subclass.

    Examples
    --------
    >>> import numpy as np
    >>> from tood import detectors
    >>> outputs = detectors.Outputs(logits=np.array([[4.0, 0.0], [0.5, 0.4]]))
    >>> detectors.create("msp").score(outputs).round(3)
    array([0.982, 0.525])
    """

    #: Lower-case, as the command line takes it; also the name of score files.
    name: ClassVar[str]
    #: How tables and plots write it; ``name`` if empty.
    title: ClassVar[str] = ""
    #: Subset of logits, features, labels, head, network, inputs. Labels are read by ``fit`` only.
    needs: ClassVar[frozenset[str]]
    #: The set that ``fit`` expects: the fit set, the calibration set, or none.
    fits_on: ClassVar[Literal["none", "fit", "calibration"]] = "fit"
    #: Authors, title, venue, year.
    citation: ClassVar[str] = ""
    #: Raise it when the same settings and data give other scores than before: stored scores are then computed again.
    version: ClassVar[int] = 1
    #: The values that a search tries, by hyper-parameter.
    grid: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: Hyper-parameters that ``fit`` reads: a change needs a new ``fit``. All others act at once.
    refit: ClassVar[frozenset[str]] = frozenset()
    #: Default of each hyper-parameter, made from the signature of ``__init__``.
    parameters: ClassVar[Mapping[str, Any]]

    shape_: tuple[int, int]  # C, D of the outputs it was fitted on; D is 0 if features are not needed
    weight_: FloatArray  # [C, D], the head, if it is needed
    bias_: FloatArray  # [C]
    network: Any = None  # never saved
    _prepared: Any = None
    _prepared_for: Any = None

    def __init__(self) -> None:
        """No hyper-parameters."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if any(isinstance(value, Field) for value in vars(cls).values()):
            declared = fields(dataclass(eq=False, repr=False)(cls))  # type: ignore[arg-type]
            cls.grid = {setting.name: grid for setting in declared if (grid := setting.metadata.get("grid"))}
            cls.refit = frozenset(setting.name for setting in declared if setting.metadata.get("refit"))
        signature = inspect.signature(cls.__init__).parameters.values()
        cls.parameters = {p.name: p.default for p in signature if p.name != "self"}

    # Methods that a subclass implements.

    def _fit(self, data: FitData) -> None:
        """Learn from the fit data; set attributes that end in ``_``, arrays or numbers."""

    def _prepare(self, dtype: np.dtype[Any]) -> Any:
        """Precompute values for scoring from the fitted state and the hyper-parameters; kept until either changes."""

    def _score(self, rows: Rows, prepared: Any) -> FloatArray:
        """Return the score of each row, ``[n]``; ``prepared`` is what :meth:`_prepare` returned."""
        raise NotImplementedError

    def _width(self) -> int:
        """The most numbers per row that ``_score`` holds at once, if more than a row has."""
        return 1

    def _check(self) -> None:
        """Raise a ToodError for an invalid hyper-parameter."""
        for name, declared in getattr(self, "__dataclass_fields__", {}).items():
            value, metadata = getattr(self, name), declared.metadata
            if metadata and not metadata["allows"](value):
                raise ToodError(f"{name}: expected {metadata['expected']}, found {value!r}")

    # Methods that users call.

    def fit(
        self: Self,
        outputs: Outputs | Iterable[Outputs] | None = None,
        partition: Partition | Iterable[Iterable[int]] | None = None,
        head: Head | None = None,
        network: Any = None,
    ) -> Self:
        """Learn from in-distribution outputs.

        Parameters
        ----------
        outputs:
            One :class:`Outputs` or an iterable of them; unused if ``fits_on`` is ``"none"``. They are read several
            times, so an iterator becomes a list. Their order and how they are split change the result only by rounding,
            in float64 except for sums of float32 features (dice, fdbd, nci, ras).
        partition:
            The logit columns of each task; the TOOD detectors need it.
        head:
            Weight and bias of the last layer, if the detector needs the head.
        network:
            The ``torch.nn.Module``, if the detector needs the network. It is neither trained nor changed.
        """
        self._check()
        for attribute in self._state():
            delattr(self, attribute)
        self._prepared_for = None
        if "network" in self.needs:
            if network is None:
                raise ToodError(f"network: {self.name} runs the network again; pass fit(..., network=module)")
            self.network = network
        if "head" in self.needs:
            self.weight_, self.bias_ = head_arrays(head)
        if self.fits_on == "none":
            self.shape_ = self.weight_.shape if "head" in self.needs else (0, 0)
            return self
        data = FitData(outputs, self.needs, partition, self.weight_.shape if "head" in self.needs else None)
        self._fit(data)
        self.shape_ = data.columns, data.dimensions
        self._fitted_with = self.get_params()
        self._ready(data.dtype)
        return self

    def score(self, outputs: Outputs) -> Any:
        """Return one finite number per sample, ``[n]``, of the kind and on the device of ``outputs.logits``."""
        self._check()
        self._check_fitted()
        rows = read_rows(outputs, self.needs | {"logits"})
        self._check_shape(rows)
        count, dtype = len(rows.logits), rows.logits.dtype
        width = max(rows.logits.shape[1], rows.features.shape[1], self._width())
        step = max(1, min(LARGEST_BLOCK // width, max(256, BLOCK // width)))
        prepared, result = self._ready(dtype), np.empty(count, dtype=dtype)
        for start in range(0, count, step):
            result[start : start + step] = self._score(rows[start : start + step], prepared)
        if not is_finite(result):
            row = int(np.isfinite(result).argmin())
            raise ToodError(f"{self.name}: the score of row {row} is {result[row]}, expected a finite {dtype}")
        return back(result, like=outputs.logits)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write hyper-parameters and fitted state to one safetensors file, atomically; a network is not saved."""
        self._check_fitted(with_network=False)
        state = self._state()
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        numbers = {name: value for name, value in state.items() if name not in arrays}
        described = {"version": self.version, "settings": self.get_params(), "numbers": numbers}
        metadata = {entry: json.dumps(value, default=plain) for entry, value in described.items()}
        write_tensors(path, KIND, arrays, {"name": self.name, **metadata})

    @classmethod
    def load(cls, path: str | os.PathLike[str], network: Any = None) -> Detector:
        """Read a detector that :meth:`save` wrote: a registered one, or one of this class.

        A file of another ``version`` of the detector, or with settings that the class no longer has, gives a warning.

        Parameters
        ----------
        path:
            The file.
        network:
            The network, if the detector needs one; it is not in the file.
        """
        tensors, metadata = read_tensors(path, KIND)
        try:
            name = metadata["name"]
            if ":" in name:
                raise ToodError(f"the name {name!r} would import code")
            found = cls if name == getattr(cls, "name", None) else REGISTRY.get(name)
            settings = json.loads(metadata["settings"])
            gone = settings.keys() - found.parameters.keys()
            detector = found().set_params(**{key: settings[key] for key in settings.keys() - gone})
            if gone:
                detector._warn(f"{os.fspath(path)} sets {', '.join(sorted(gone))}, which is ignored")
            if (version := int(metadata.get("version", found.version))) != found.version:
                detector._warn(f"{os.fspath(path)} is of version {version}, now {found.version}: fit and save it again")
            for name, value in {**tensors, **json.loads(metadata["numbers"])}.items():
                if not name.endswith("_"):
                    raise ToodError(f"unexpected entry {name!r}")
                setattr(detector, name, value)
            if hasattr(detector, "shape_"):
                columns, dimensions = detector.shape_
                detector.shape_ = columns, dimensions
                detector._fitted_with = detector.get_params()
                if max(columns, dimensions) > WIDEST:
                    raise ToodError(f"shape_: expected at most {WIDEST} columns, found {detector.shape_}")
                if "network" not in detector.needs and (columns or detector.fits_on != "none"):
                    # Two rows of ones are scored, so that a missing or misshaped array is noticed here.
                    trial = Outputs(*(np.ones((2, size), np.float32) if size else None for size in detector.shape_))
                    rows = read_rows(trial, detector.needs)
                    with np.errstate(all="ignore"):
                        np.broadcast_to(detector._score(rows, detector._ready(rows.logits.dtype)), 2)
        except Exception as error:
            raise ToodError(f"{os.fspath(path)}: not a usable detector: {error}") from error
        detector.network = network
        return detector

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The hyper-parameters by name, as scikit-learn expects."""
        return {name: getattr(self, name) for name in self.parameters}

    def set_params(self: Self, **params: Any) -> Self:
        """Change hyper-parameters; those that ``fit`` reads are refused by ``score`` until the next ``fit``."""
        for name in params:
            if name not in self.parameters:
                raise UnknownNameError(f"hyper-parameter of {self.name}", name, self.parameters)
        changed = copy.copy(self)
        vars(changed).update(params)
        changed._check()
        vars(self).update(params)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.get_params().items())})"

    # Internals.

    def _state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name.endswith("_")}

    def _ready(self, dtype: np.dtype[Any]) -> Any:
        """Result of ``_prepare``, computed again if the precision or a hyper-parameter has changed."""
        values = self.get_params().values()
        key = (dtype, [value.tolist() if isinstance(value, np.ndarray) else value for value in values])
        if self._prepared_for != key:
            self._prepared = self._prepare(dtype)
            self._prepared_for = key
        return self._prepared

    def _check_fitted(self, with_network: bool = True) -> None:
        fitted = self.fits_on != "none" or not self.needs.isdisjoint(("head", "network"))
        if fitted and not hasattr(self, "shape_"):
            raise NotFittedError(f"this {self.name} detector is not fitted yet: call fit first")
        if with_network and "network" in self.needs and self.network is None:
            raise ToodError(f"network: {self.name} runs the network again; pass Detector.load(path, network=module)")
        for name in self.refit:
            if getattr(self, name) != self._fitted_with[name]:
                raise ToodError(f"{name}: changed since fit, and {self.name} reads it there; call fit again")

    def _check_shape(self, rows: Rows) -> None:
        columns, dimensions = getattr(self, "shape_", (0, 0))
        if columns and rows.logits.shape[1] != columns:
            raise ToodError(f"logits: expected {columns} columns as in fit, found shape {rows.logits.shape}")
        if dimensions and rows.features.shape[1] not in (0, dimensions):
            raise ToodError(f"features: expected {dimensions} dimensions as in fit, found shape {rows.features.shape}")

    def _warn(self, message: str) -> None:
        warnings.warn(f"{self.name}: {message}", UserWarning, stacklevel=4)


REGISTRY: Registry[type[Detector]] = Registry("detector", "tood.detectors", Detector)
register = REGISTRY.register
