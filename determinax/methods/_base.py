"""What every method is: a configuration, with one protocol that the engine runs."""

import abc
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import lineax as lx
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from determinax.estimate import Estimate
from determinax.operators import Products, Traits
from determinax.progress import Report

M = TypeVar("M", bound="AbstractMethod")


class Plan(NamedTuple):
    """`num_chunks` chunks of `size` units, and a last one of `rest` where the total is not a multiple."""

    num_chunks: int
    size: int
    rest: int

    @property
    def total(self) -> int:
        """Units altogether."""
        return self.num_chunks * self.size + self.rest

    @property
    def is_single(self) -> bool:
        """Whether there is no second chunk."""
        return self.num_chunks + bool(self.rest) <= 1

    @staticmethod
    @functools.lru_cache(maxsize=1024)  # a search over divisors, at every eager call
    def of(total: int, most: int) -> "Plan":
        """Even chunks where the total has a divisor near `most`: then there is one program, no rest."""
        most = max(1, min(total, most))
        size = next((s for s in range(most, most // 4, -1) if total % s == 0), most)
        return Plan(total // size, size, total % size)


class Selection(NamedTuple):
    """What is to be run instead, on which operator, why, and what finding that out has spent."""

    method: "AbstractMethod"
    operator: lx.AbstractLinearOperator
    why: str | None = None
    spent: Products = Products()


class AbstractMethod(eqx.Module):
    """A configuration: arrays (a proposal) are leaves, settings are static fields.

    The engine calls `prepare` once, `chunk` for every number of the plan, `merge` in the order of the
    numbers, and `summarise` at the end. All of these are pure functions of arrays: a method never
    loops over chunks, prints, or raises on values; what goes wrong travels as a `Fault`.
    """

    @abc.abstractmethod
    def plan(self, traits: Traits) -> Plan:
        """How many chunks of which size: arithmetic, without a product or a trace."""

    @abc.abstractmethod
    def cost(self, traits: Traits) -> Products:
        """The products that a run takes, before anything is spent (the most, where a bar stops it)."""

    @abc.abstractmethod
    def empty(self, operator: lx.AbstractLinearOperator, prepared: Any) -> Any:
        """The state of no chunks: merging it changes nothing."""

    @abc.abstractmethod
    def chunk(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Any,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> Any:
        """The state of chunk number `index` alone, of `size` units: a pure function of its number."""

    @abc.abstractmethod
    def summarise(self, operator: lx.AbstractLinearOperator, prepared: Any, state: Any) -> Any:
        """The estimate from a state (or what has one, and a code)."""

    def memory(self, traits: Traits) -> int:
        """Bytes that a run is reckoned to need beside the operator; 0 where it says nothing."""
        del traits
        return 0

    def prepare(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> Any:
        """What is done once, such as a factorisation. Never the operator: what comes out is copied."""
        del operator, key

    def merge(self, state: Any, partial: Any) -> Any:
        """The state with one more chunk."""
        return state.merge(partial)

    def has_enough(self, state: Any) -> Bool[Array, ""] | bool:
        """Whether the state holds enough for its standard error to be believed, and a bar to stop it."""
        del state
        return True

    @property
    def can_split(self) -> bool:
        """Whether chunks may be computed on many devices: not where a state is no sum, as a matrix."""
        return True

    def require(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> None:
        """Refuse, in a sentence, what this method cannot run on: types and shapes, never values."""

    def select(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        spent: Products,
        report: Report | None,
    ) -> Selection | Estimate:
        """Outside of `jit`, where values can be looked at: what is to be run; or the estimate itself.

        `spent` products went before, and `report` tells a person what is done. Most methods run themselves.
        """
        del key, spent, report
        return Selection(self, operator)

    def traced(self, traits: Traits) -> "AbstractMethod":
        """The same method with a trace beside its state, where it has draws to keep one of."""
        del traits
        return self

    def within_jit(self, traits: Traits) -> "AbstractMethod":
        """Inside of `jit`, where only types and shapes are known: what is to be run."""
        del traits
        return self


class AbstractSelector(AbstractMethod):
    """A method that looks at values, on the host, and says what is to be run."""

    def plan(self, traits: Traits) -> Plan:
        """Inside of `jit`, that of what is run there."""
        return self.within_jit(traits).plan(traits)

    def cost(self, traits: Traits) -> Products:
        """Inside of `jit`, that of what is run there."""
        return self.within_jit(traits).cost(traits)

    def within_jit(self, traits: Traits) -> AbstractMethod:
        """See `AbstractMethod`: nothing, unless types and shapes are enough to go by."""
        raise ValueError(
            f"{type(self).__name__} looks at values: call it outside of jit, vmap and grad"
        )

    def empty(self, operator: lx.AbstractLinearOperator, prepared: Any) -> Any:
        """Never called: another method is run."""
        raise AssertionError

    def chunk(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Any,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> Any:
        """Never called: another method is run."""
        raise AssertionError

    def summarise(self, operator: lx.AbstractLinearOperator, prepared: Any, state: Any) -> Estimate:
        """Never called: another method is run."""
        raise AssertionError


# by the name that the command line has for it
METHODS: dict[str, type[AbstractMethod]] = {}


def registered(name: str) -> Callable[[type[M]], type[M]]:
    """Put a method into `METHODS`, which the tests go through; the command line knows this library's."""

    def register(cls: type[M]) -> type[M]:
        METHODS[name] = cls
        return cls

    return register
