"""Small types of Agent Lightning 0.3: data sets, filters, what an agent returns, and workers with a life cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, SupportsIndex, TypedDict, TypeVar

T_co = TypeVar("T_co", covariant=True)

TaskInput = Any
"""A task: any JSON value; a pydantic object is stored as its fields."""
RolloutRawResult = Any
"""What an agent returns: None, a reward, rewards by name, or spans (see `relight.litagent.returns`)."""


class Dataset(Protocol[T_co]):
    """Tasks by position: a list, or a data set of torch."""

    def __getitem__(self, index: SupportsIndex, /) -> T_co: ...

    def __len__(self) -> int: ...


class FilterField(TypedDict, total=False):
    """Conditions on one field."""

    exact: Any
    within: Sequence[Any]
    contains: str


FilterOptions = Mapping[str, FilterField | Literal["and", "or"] | Mapping[str, FilterField]]
"""Conditions by field. `_aggregate` is how they are combined; those under `_must` all hold in any case."""


class SortOptions(TypedDict):
    """The order of results."""

    name: str
    """A field."""
    order: Literal["asc", "desc"]


class ParallelWorkerBase:
    """Base of what runs in several workers: subclasses override what they need.

    `init` comes once, then `init_worker`, `run` and `teardown_worker` in each worker, and `teardown` at the end.
    """

    def __init__(self) -> None:
        self.worker_id: int | None = None

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Prepare what the workers share."""

    def init_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Prepare one worker."""
        self.worker_id = worker_id

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work."""

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Release what one worker holds."""

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Release what the workers share."""
