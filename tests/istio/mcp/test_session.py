"""One stream of an istiod, as a transcript."""

from __future__ import annotations

import pytest

from tests.istio.mcp.objects import catalog_of, virtual_service
from xds_server.istio.mcp.catalog import EMPTY_VERSION, Catalog
from xds_server.istio.mcp.kinds import Kind, NotIstioError
from xds_server.istio.mcp.proto import McpRequest
from xds_server.istio.mcp.session import MOST_TYPES, McpSession, Said, TooManyTypesError

VS = "networking.istio.io/v1/VirtualService"
OLD_VS = "networking.istio.io/v1alpha3/VirtualService"
SE = "networking.istio.io/v1/ServiceEntry"
DR = "networking.istio.io/v1/DestinationRule"
WASM = "extensions.istio.io/v1alpha1/WasmPlugin"
BOGUS = "2026-11-29 15:16:39.27 +0000 UTC m=+0.27"


def ask(session: McpSession, *types: str) -> None:
    for each in types:
        assert session.heard(McpRequest(type_url=each, nonce=BOGUS)) is Said.ASKED


def test_a_nonce_that_nobody_gave_is_a_subscription_on_a_type_not_asked_for_before():
    session, catalog = McpSession(), catalog_of(virtual_service())
    ask(session, VS)
    (answer,) = session.due(catalog, 0.0)
    assert (answer.type_url, answer.version) == (VS, catalog.version(Kind.VIRTUAL_SERVICE))
    assert session.due(catalog, 0.0) == [], "it was sent"


def test_what_we_have_nothing_of_is_answered_too_and_only_once():
    session, catalog = McpSession(), catalog_of(virtual_service())
    ask(session, WASM)
    (answer,) = session.due(catalog, 0.0)
    assert (answer.type_url, answer.kind, answer.version) == (WASM, None, EMPTY_VERSION)
    assert answer.catalog.of_kind(answer.kind) == ()
    assert session.due(catalog_of(virtual_service(weight=40)), 0.0) == []


@pytest.mark.parametrize("type_url", [VS, OLD_VS, "networking.istio.io/v1beta1/VirtualService"])
def test_the_type_is_said_back_as_it_was_asked(type_url):
    session = McpSession()
    ask(session, type_url)
    (answer,) = session.due(catalog_of(virtual_service()), 0.0)
    assert (answer.type_url, answer.kind) == (type_url, Kind.VIRTUAL_SERVICE)


def test_nobody_is_answered_before_it_is_known_what_to_say():
    session = McpSession()
    ask(session, VS, WASM)
    assert session.due(None, 0.0) == []
    assert len(session.due(Catalog({}), 0.0)) == 2


def test_hosts_come_before_the_routes_that_name_them():
    session = McpSession()
    ask(session, VS, DR, WASM, SE)
    answers = session.due(catalog_of(virtual_service()), 0.0)
    assert [each.type_url for each in answers] == [SE, DR, WASM, VS]


def test_the_meshs_own_configuration_gets_no_answer():
    session = McpSession()
    said = session.heard(McpRequest(type_url="core/v1alpha1/MeshConfig", nonce=BOGUS))
    assert said is Said.NOTHING
    assert session.types == {}


def test_an_ack_is_known_by_its_nonce_and_sends_nothing():
    session, catalog = McpSession(), catalog_of(virtual_service())
    ask(session, VS)
    (answer,) = session.due(catalog, 0.0)
    assert session.heard(McpRequest(type_url=VS, nonce=answer.nonce)) is Said.ACKED
    assert session.types[VS].acked == answer.version
    assert session.due(catalog, 0.0) == []


def test_an_ack_of_an_older_response_is_late():
    session = McpSession()
    ask(session, VS)
    (first,) = session.due(catalog_of(virtual_service(weight=90)), 0.0)
    session.due(catalog_of(virtual_service(weight=80)), 0.0)
    assert session.heard(McpRequest(type_url=VS, nonce=first.nonce)) is Said.LATE
    assert session.types[VS].acked is None


def test_a_change_and_back_has_nonces_of_its_own():
    session, one, other = (
        McpSession(),
        catalog_of(virtual_service(weight=90)),
        catalog_of(virtual_service()),
    )
    ask(session, VS)
    nonces = [session.due(each, 0.0)[0].nonce for each in (one, other, one)]
    assert len(set(nonces)) == 3


def test_a_refusal_is_remembered_and_not_sent_again():
    session, catalog = McpSession(), catalog_of(virtual_service())
    ask(session, VS)
    (answer,) = session.due(catalog, 0.0)
    said = session.heard(McpRequest(type_url=VS, nonce=answer.nonce, error="no such host"))
    assert (said, session.types[VS].refused) == (Said.REFUSED, "no such host")
    assert session.due(catalog, 0.0) == []


def test_a_strange_nonce_on_a_known_type_is_no_new_subscription():
    session, catalog = McpSession(), catalog_of(virtual_service())
    ask(session, VS)
    session.due(catalog, 0.0)
    assert session.heard(McpRequest(type_url=VS, nonce=BOGUS)) is Said.NOTHING
    assert session.due(catalog, 0.0) == [], "two of them would answer each other for ever"


def test_who_asks_again_without_a_nonce_is_answered_again():
    session, catalog = McpSession(), catalog_of(virtual_service())
    ask(session, VS)
    session.due(catalog, 0.0)
    assert session.heard(McpRequest(type_url=VS)) is Said.ASKED
    assert len(session.due(catalog, 0.0)) == 1


@pytest.mark.parametrize(
    ("type_url", "text"),
    [
        ("type.googleapis.com/envoy.config.cluster.v3.Cluster", "proxies use the xDS port"),
        ("VirtualService", "expected group/version/Kind"),
        ("a//b", "expected group/version/Kind"),
        ("", "expected group/version/Kind"),
    ],
)
def test_who_is_no_istiod_gets_no_empty_answer(type_url, text):
    with pytest.raises(NotIstioError, match=text):
        McpSession().heard(McpRequest(type_url=type_url))


def test_a_stream_cannot_ask_for_ever():
    session = McpSession()
    ask(session, *(f"g/v{n}/Kind" for n in range(MOST_TYPES)))
    with pytest.raises(TooManyTypesError):
        session.heard(McpRequest(type_url="g/v/Other"))
