"""How much may be admitted: of a model, of a tier, of a tenant.

Values only. They are the fleet's; what part of them each proxy may admit is decided by `core.shares`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

TenantName = NewType("TenantName", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most that may be admitted; None = no limit."""

    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    """Estimated prompt tokens plus the tokens that may be generated."""
    concurrency: int | None = None
    """Requests in progress at each proxy (tiers only)."""
    queue: int | None = None
    """Requests that may wait at each proxy for one of these to end (tiers only); where it is not 0, at least `concurrency`."""

    @property
    def has_rate(self) -> bool:
        """Whether it limits requests/s or tokens/s."""
        return self.requests_per_second is not None or self.tokens_per_second is not None

    @property
    def is_set(self) -> bool:
        """Whether it limits anything."""
        return self.has_rate or self.concurrency is not None


NO_LIMIT = Limit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A customer with a limit of its own."""

    name: TenantName
    """What logs and statistics call it."""
    key: str
    """The header's value that names it, or the SHA-256 of that value in hex."""
    limit: Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """How tenants are told apart, and what each may use."""

    header: str
    """The request header that names a tenant, in lower case."""
    hashed: bool = False
    """Whether `Tenant.key` is a hash: keys of an API are secrets and not written into files."""
    others: Limit = NO_LIMIT
    """For every value of the header that no tenant is listed for, each by itself ..."""
    missing: Limit = NO_LIMIT
    """... and for all requests without the header, together."""
    listed: tuple[Tenant, ...] = ()
