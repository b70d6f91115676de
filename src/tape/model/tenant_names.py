"""Names within a tenant: inside, `orders/ingest` of the tenant acme is the qualified name `~acme/orders/ingest`.

Endpoints translate with `qualify` and `display`; everything behind them works on qualified names. What has no tenant
has a bare name: things of an open server and of callers without a tenant.
"""

from __future__ import annotations

from tape.model.principal import current_principal

# A client cannot choose a name that begins with this.
MARK = "~"
# How a caller that has a tenant and sees all writes the name of what has none.
NO_TENANT = f"{MARK}/"


def qualify(name: str) -> str:
    """The qualified name of what the caller calls by this name: of its own tenant, unless it names another.

    A caller of one tenant reaches that tenant alone: `~other/x` becomes a name that nothing has. An empty name stays
    empty.
    """
    if not name or (sees_all_names() and tenant_of(name)):
        return name
    own = _own_tenant()
    if own and sees_all_names() and name.startswith(NO_TENANT):
        return name.removeprefix(NO_TENANT)
    return name_within(own, name)


def display(name: str) -> str:
    """A qualified name as the caller writes it: `qualify` of it is the name again."""
    own = _own_tenant()
    if not own or tenant_of(name) not in ("", own):
        return name
    return name.removeprefix(prefix_of(own)) if tenant_of(name) else NO_TENANT + name


def is_visible(name: str) -> bool:
    """Whether what has this qualified name exists for the caller."""
    return name.startswith(visible_prefix())


def visible_prefix() -> str:
    """The prefix of every qualified name that exists for the caller; empty if it sees all tenants."""
    return "" if sees_all_names() else prefix_of(_own_tenant())


def sees_all_names() -> bool:
    """Whether the caller sees the names of all tenants: with `tenant:*` or `system`, and on an open server."""
    principal = current_principal()
    return principal.is_open or principal.sees_all_tenants


def name_within(tenant: str, name: str) -> str:
    """The qualified name of a tenant's thing. A name that is qualified with that tenant stays as it is."""
    prefix = prefix_of(tenant)
    return name if name.startswith(prefix) else prefix + name


def prefix_of(tenant: str) -> str:
    """The prefix of a tenant's qualified names; empty without a tenant."""
    return f"{MARK}{_encode(tenant)}/" if tenant else ""


def range_of(prefix: str) -> tuple[str, str]:
    """The range of the names that begin with a tenant's prefix: from the first, exclusive of the second."""
    return prefix, prefix[:-1] + chr(ord("/") + 1)


def tenant_of(name: str) -> str:
    """The tenant of a qualified name; empty if it is bare."""
    return split_name(name)[0]


def plain_name(name: str) -> str:
    """A qualified name without its tenant."""
    return split_name(name)[1]


def split_name(name: str) -> tuple[str, str]:
    """The tenant of a qualified name and the name within it; an empty tenant if it is bare."""
    encoded, slash, plain = name.removeprefix(MARK).partition("/")
    tenant = _decode(encoded)
    is_qualified = name.startswith(MARK) and slash and plain and tenant and _encode(tenant) == encoded
    return (tenant, plain) if is_qualified else ("", name)


def _own_tenant() -> str:
    principal = current_principal()
    return "" if principal.is_open else principal.tenant


def _encode(tenant: str) -> str:
    return tenant.replace("%", "%25").replace("/", "%2F").replace(MARK, "%7E")


def _decode(encoded: str) -> str:
    return encoded.replace("%7E", MARK).replace("%2F", "/").replace("%25", "%")
