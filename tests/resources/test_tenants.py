"""The hash that names a tenant is SHA-256, whatever the key."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.lua_filter import LuaFilter
from xds_server.core.limits import Tenants
from xds_server.resources.limits.tenants import tenant_filters, tenant_program

PLAIN, BEARER = LuaFilter(tenant_program("x-key")), LuaFilter(tenant_program("authorization"))


def named(lua: LuaFilter, header: str, value: str) -> str | None:
    return lua.facts(None, {header: value}).get("tenant")


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000, 9000])
def test_keys_of_every_length(size):
    assert named(PLAIN, "x-key", "k" * size) == sha256("k" * size)


@given(st.text(max_size=300))
def test_any_key(key):
    assert named(PLAIN, "x-key", key) == sha256(key)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        pytest.param("Bearer sk-1", "sk-1", id="bearer"),
        pytest.param("bearer sk-1", "sk-1", id="lower case"),
        pytest.param("Basic abc", "Basic abc", id="another scheme is part of the key"),
        pytest.param("sk-1", "sk-1", id="no scheme"),
        pytest.param("Bearer", "Bearer", id="nothing behind it"),
    ],
)
def test_of_an_authorization_header_the_key_counts(value, key):
    assert named(BEARER, "authorization", value) == sha256(key)
    assert named(BEARER, "authorization", value) == sha256(key), "remembered"


def test_without_the_header_nobody_is_named_and_the_memory_is_bounded():
    assert BEARER.facts(None, {}) == {}
    for number in range(10_050):
        named(PLAIN, "x-key", f"{number}")
    assert named(PLAIN, "x-key", "7") == sha256("7")


def test_only_hashed_tenants_need_the_filter():
    assert tenant_filters(None) == []
    assert tenant_filters(Tenants(header="x-key")) == []
    assert len(tenant_filters(Tenants(header="x-key", hashed=True))) == 1
