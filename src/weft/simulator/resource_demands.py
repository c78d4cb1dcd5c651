"""Resources, and what rows demand of them.

A resource is known by a key. In a collapsed simulation the keys name representatives: of
the transfers that a symmetric schedule makes, as many cross a given port as one transfer
crosses ports of that kind, so the weights stay what they are and only the owner changes.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Many = float | Ints | NDArray[np.floating[Any]]  # one for all rows, or one each


class Resource(IntEnum):
    """The kinds of resources: the leading part of a key."""

    MEMORY = 0
    UNITS = 1
    LAUNCH = 2
    ENGINE = 3
    PORT_OUT = 4
    PORT_IN = 5
    LINK = 6
    RING_UP = 7
    RING_DOWN = 8
    HOST_MEMORY = 9
    CACHE = 10
    WORK = 11  # unit-seconds of grids: counted for their energy, without a limit


LINKS = (Resource.PORT_OUT, Resource.LINK, Resource.RING_UP, Resource.RING_DOWN)
_KIND, _LEVEL, _OWNER = 58, 54, 22  # the lowest bit of each part of a key


def key(kind: Resource | Ints, owner: Ints, *, level: int = 0, part: int | Ints = 0) -> Ints:
    """Return the key of a resource: kind, level of network, owner, and number among several."""
    leading = np.asarray(kind, np.int64) << _KIND | level << _LEVEL
    return np.asarray(leading | np.asarray(owner, np.int64) << _OWNER | part)


def resource_kind(keys: Ints) -> Ints:
    """Return the kind of resource that each key names."""
    return keys >> _KIND


def resource_owner(keys: Ints) -> Ints:
    """Return the owner that each key names: a rank, or the row of a launch."""
    return (keys >> _OWNER) & ((1 << (_LEVEL - _OWNER)) - 1)


@dataclass(slots=True)
class Demands:
    """Demands collected piece by piece: rows, keys, weights, and capacities of the keys."""

    rows: list[Ints] = field(default_factory=list)
    keys: list[Ints] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)
    capacities: list[Floats] = field(default_factory=list)

    def add(self, rows: Ints, keys: Ints, weight: Many, capacity: Many) -> None:
        """Make each of ``rows`` use ``weight`` of a resource for each byte that it moves."""
        self.rows.append(rows)
        self.keys.append(keys)
        self.weights.append(np.broadcast_to(np.asarray(weight, np.float64), rows.shape))
        self.capacities.append(np.broadcast_to(np.asarray(capacity, np.float64), rows.shape))

    def columns(self, num_rows: int) -> dict[str, Any]:
        """Return the columns of the native core, with ``key`` of each resource next to them."""
        rows = np.concatenate([*self.rows, np.empty(0, np.int64)])
        order = np.argsort(rows, kind="stable")
        keys = np.concatenate([*self.keys, np.empty(0, np.int64)])[order]
        unique, first, number = np.unique(keys, return_index=True, return_inverse=True)
        capacity = np.concatenate([*self.capacities, np.empty(0)])[order][first]
        start = np.zeros(num_rows + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=num_rows), out=start[1:])
        return {
            "demand_start": start,
            "demand_resource": number.reshape(-1).astype(np.int32),
            "demand_weight": np.concatenate([*self.weights, np.empty(0)])[order],
            "capacity": np.ascontiguousarray(capacity),
            "key": unique,
        }
