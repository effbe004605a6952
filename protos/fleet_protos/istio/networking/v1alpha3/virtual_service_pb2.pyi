from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VirtualService(_message.Message):
    __slots__ = ("hosts", "gateways", "http")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    HTTP_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    gateways: _containers.RepeatedScalarFieldContainer[str]
    http: _containers.RepeatedCompositeFieldContainer[HTTPRoute]
    def __init__(self, hosts: _Optional[_Iterable[str]] = ..., gateways: _Optional[_Iterable[str]] = ..., http: _Optional[_Iterable[_Union[HTTPRoute, _Mapping]]] = ...) -> None: ...

class HTTPRoute(_message.Message):
    __slots__ = ("match", "route", "headers", "name", "direct_response")
    MATCH_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIRECT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    match: _containers.RepeatedCompositeFieldContainer[HTTPMatchRequest]
    route: _containers.RepeatedCompositeFieldContainer[HTTPRouteDestination]
    headers: Headers
    name: str
    direct_response: HTTPDirectResponse
    def __init__(self, match: _Optional[_Iterable[_Union[HTTPMatchRequest, _Mapping]]] = ..., route: _Optional[_Iterable[_Union[HTTPRouteDestination, _Mapping]]] = ..., headers: _Optional[_Union[Headers, _Mapping]] = ..., name: _Optional[str] = ..., direct_response: _Optional[_Union[HTTPDirectResponse, _Mapping]] = ...) -> None: ...

class HTTPMatchRequest(_message.Message):
    __slots__ = ("uri", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: StringMatch
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[StringMatch, _Mapping]] = ...) -> None: ...
    URI_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    uri: StringMatch
    headers: _containers.MessageMap[str, StringMatch]
    def __init__(self, uri: _Optional[_Union[StringMatch, _Mapping]] = ..., headers: _Optional[_Mapping[str, StringMatch]] = ...) -> None: ...

class StringMatch(_message.Message):
    __slots__ = ("exact", "prefix", "regex")
    EXACT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    exact: str
    prefix: str
    regex: str
    def __init__(self, exact: _Optional[str] = ..., prefix: _Optional[str] = ..., regex: _Optional[str] = ...) -> None: ...

class HTTPRouteDestination(_message.Message):
    __slots__ = ("destination", "weight")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    destination: Destination
    weight: int
    def __init__(self, destination: _Optional[_Union[Destination, _Mapping]] = ..., weight: _Optional[int] = ...) -> None: ...

class Destination(_message.Message):
    __slots__ = ("host", "subset", "port")
    HOST_FIELD_NUMBER: _ClassVar[int]
    SUBSET_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    host: str
    subset: str
    port: PortSelector
    def __init__(self, host: _Optional[str] = ..., subset: _Optional[str] = ..., port: _Optional[_Union[PortSelector, _Mapping]] = ...) -> None: ...

class PortSelector(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Headers(_message.Message):
    __slots__ = ("request", "response")
    class HeaderOperations(_message.Message):
        __slots__ = ("set", "add", "remove")
        class SetEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        class AddEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        SET_FIELD_NUMBER: _ClassVar[int]
        ADD_FIELD_NUMBER: _ClassVar[int]
        REMOVE_FIELD_NUMBER: _ClassVar[int]
        set: _containers.ScalarMap[str, str]
        add: _containers.ScalarMap[str, str]
        remove: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, set: _Optional[_Mapping[str, str]] = ..., add: _Optional[_Mapping[str, str]] = ..., remove: _Optional[_Iterable[str]] = ...) -> None: ...
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request: Headers.HeaderOperations
    response: Headers.HeaderOperations
    def __init__(self, request: _Optional[_Union[Headers.HeaderOperations, _Mapping]] = ..., response: _Optional[_Union[Headers.HeaderOperations, _Mapping]] = ...) -> None: ...

class HTTPDirectResponse(_message.Message):
    __slots__ = ("status", "body")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    status: int
    body: HTTPBody
    def __init__(self, status: _Optional[int] = ..., body: _Optional[_Union[HTTPBody, _Mapping]] = ...) -> None: ...

class HTTPBody(_message.Message):
    __slots__ = ("string", "bytes")
    STRING_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    string: str
    bytes: bytes
    def __init__(self, string: _Optional[str] = ..., bytes: _Optional[bytes] = ...) -> None: ...
