"""One request's conversation with a gateway, FULL_DUPLEX_STREAMED: messages in, answers out, in order.

Where the body has no say, headers are answered at once and the body is passed on piece by piece. Else it is held
until its end: answer to the headers first, then the body. Responses are passed on as they come. Nothing is answered
twice: Envoy may send the end of a body of a megabyte again.

No I/O and no clock.
"""

from __future__ import annotations

from xds_server.istio.picker import answers, proto
from xds_server.istio.picker.decide import MOST_HELD_BYTES, Desk, Request, Sent
from xds_server.istio.picker.proto import (
    Answer,
    BadMessageError,
    BodyMode,
    Chunk,
    Headers,
    Trailers,
)
from xds_server.resources import headers as truth

CONFORMANCE_SERVED = "x-conformance-test-served-endpoint"
_TOLD = (truth.SERVED_MODEL, truth.DOWNGRADED, truth.DEGRADE_REASON)
_STREAMED = (BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED)


class Exchange:
    """From a request's headers to the end of its response."""

    __slots__ = (
        "_desk", "_endpoint", "_has_begun", "_held", "_held_bytes", "_is_answered", "_request",
        "_request_over", "_response_over", "_sent",
    )  # fmt: skip

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._request: Request | None = None
        """The head of a request that is not decided yet."""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._sent: Sent | None = None
        self._endpoint: str | None = None
        """Where the request is counted as under way."""
        self._has_begun = False
        """Headers come first, or not at all."""
        self._is_answered = False
        """The client got an answer from here: nothing else is said."""
        self._request_over = False
        self._response_over = False

    def take(self, raw: bytes) -> list[bytes]:
        """Return the answers to a message.

        Raises:
            BadMessageError: It cannot be answered; the text says what is wrong.
        """
        message = proto.parse(raw)
        if self._is_answered:
            return []
        if isinstance(message, Chunk):
            return self._chunk(message)
        if isinstance(message, Headers):
            return (
                self._request_headers(message)
                if message.is_request
                else self._response_headers(message)
            )
        return self._trailers(message)

    def close(self) -> None:
        """End the request, however it ended."""
        self._let_go()
        self._leave()

    def _leave(self) -> None:
        if self._endpoint is not None:
            self._desk.picker.ended(self._endpoint)
            self._endpoint = None

    # The request.

    def _request_headers(self, message: Headers) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        mode = _request_mode(message)
        fields = message.fields
        request = Request(
            authority=fields.get(":authority", ""),
            path=fields.get(":path", ""),
            headers=fields,
            subset=message.subset,
        )
        has_body = not message.is_last and mode is not BodyMode.NONE
        self._request_over = message.is_last
        if has_body and self._desk.needs_body(request):
            self._request = request
            return []
        decision = self._desk.decide(request, None)
        return self._answer(decision) if isinstance(decision, Answer) else self._send(decision)

    def _chunk(self, message: Chunk) -> list[bytes]:
        if not message.is_request:
            return self._response_chunk(message)
        if self._request_over:
            return []
        self._has_begun = True
        self._request_over = message.is_last
        if self._request is None:
            return proto.chunks(message.data, is_request=True, is_last=message.is_last)
        self._held.append(message.data)
        self._held_bytes += len(message.data)
        desk = self._desk
        desk.held_bytes += len(message.data)
        if self._held_bytes > desk.options.max_body_bytes:
            desk.tally.add("fleet_picker_refusals_total", "", "too_large")
            return self._answer(answers.too_large(desk.options.max_body_bytes))
        if desk.held_bytes > MOST_HELD_BYTES:
            desk.tally.add("fleet_picker_refusals_total", "", "overloaded")
            return self._answer(answers.TOO_MUCH_HELD)
        return self._decide_with_body(is_last=True) if message.is_last else []

    def _trailers(self, message: Trailers) -> list[bytes]:
        if self._request_over if message.is_request else self._response_over:
            return []
        if not message.is_request:
            self._response_over = True
            self._leave()
            return [proto.trailers(is_request=False)]
        self._request_over = True
        replies = [] if self._request is None else self._decide_with_body(is_last=False)
        return replies if self._is_answered else [*replies, proto.trailers(is_request=True)]

    def _decide_with_body(self, *, is_last: bool) -> list[bytes]:
        assert self._request is not None
        body, request = b"".join(self._held), self._request
        self._request = None
        self._let_go()
        decision = self._desk.decide(request, body)
        if isinstance(decision, Answer):
            return self._answer(decision)
        # What was rewritten is passed on instead.
        body = body if decision.body is None else decision.body
        replies = self._send(decision)
        if body or is_last:
            replies += proto.chunks(body, is_request=True, is_last=is_last)
        return replies

    def _send(self, decision: Sent) -> list[bytes]:
        self._sent = decision
        self._count_at(decision.endpoints[0])
        return [proto.request_continues(",".join(decision.endpoints))]

    def _answer(self, answer: Answer) -> list[bytes]:
        self._is_answered = True
        self._let_go()
        return [proto.immediate(answer)]

    def _let_go(self) -> None:
        self._held.clear()
        self._desk.held_bytes -= self._held_bytes
        self._held_bytes = 0

    def _count_at(self, endpoint: str) -> None:
        self._leave()
        self._endpoint = endpoint
        self._desk.picker.began(endpoint)

    # The response.

    def _response_headers(self, message: Headers) -> list[bytes]:
        sent = self._sent
        if message.is_last:
            self._response_over = True
        extra: dict[str, str] = {}
        drops: tuple[str, ...] = ()
        if sent is not None:
            self._landed(sent, message.served)
            # What an engine says of itself under these names could only mislead.
            extra = {} if message.is_local else _about(sent, message.served)
            drops = tuple(name for name in _TOLD if name not in extra)
        if message.is_last:
            self._leave()
        if self._desk.options.obeys_conformance:
            extra[CONFORMANCE_SERVED] = (
                message.served or "fail: missing destination endpoint served metadata"
            )
        return [proto.response_continues(tuple(extra.items()), drops)]

    def _landed(self, sent: Sent, served: str | None) -> None:
        """Count the request where it is now, and whether the gateway did what it was told."""
        landing = "unknown"
        if served is not None:
            landing = "picked" if served == sent.endpoints[0] else "elsewhere"
            if landing == "elsewhere" and served in sent.endpoints:
                landing = "retried"
        self._desk.tally.add("fleet_picker_landings_total", landing)
        if served is not None and served != self._endpoint and self._endpoint is not None:
            self._count_at(served)

    def _response_chunk(self, message: Chunk) -> list[bytes]:
        if self._response_over:
            return []
        if message.is_last:
            self._response_over = True
            self._leave()
        return proto.chunks(message.data, is_request=False, is_last=message.is_last)


def _request_mode(message: Headers) -> BodyMode:
    """Return how the request's body comes.

    Raises:
        BadMessageError: Bodies come in a way that is answered otherwise.
    """
    if message.body_modes is None:
        return BodyMode.FULL_DUPLEX_STREAMED
    for mode in message.body_modes:
        if mode not in _STREAMED:
            raise BadMessageError(
                f"the gateway sends bodies as {mode.name}: expected FULL_DUPLEX_STREAMED in the "
                "processing_mode of its ext_proc filter, as gateways do for an InferencePool"
            )
    return message.body_modes[0]


def _about(sent: Sent, served: str | None) -> dict[str, str]:
    """Return what the client is told of who answered; nothing of who is none of ours."""
    tier = sent.tier
    if served is not None and served not in tier.endpoints:
        index = sent.table.tier_of.get(served)
        if index is None:
            return {}
        tier = sent.table.tiers[index]
    told = {truth.SERVED_MODEL: tier.serves}
    if tier.index > 0:
        told[truth.DOWNGRADED] = "true"
        told[truth.DEGRADE_REASON] = tier.rule if tier.index == sent.start else truth.FAILOVER
    return told
