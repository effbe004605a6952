from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServiceEntry(_message.Message):
    __slots__ = ("hosts", "ports", "location", "resolution", "endpoints")
    class Location(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MESH_EXTERNAL: _ClassVar[ServiceEntry.Location]
        MESH_INTERNAL: _ClassVar[ServiceEntry.Location]
    MESH_EXTERNAL: ServiceEntry.Location
    MESH_INTERNAL: ServiceEntry.Location
    class Resolution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[ServiceEntry.Resolution]
        STATIC: _ClassVar[ServiceEntry.Resolution]
        DNS: _ClassVar[ServiceEntry.Resolution]
        DNS_ROUND_ROBIN: _ClassVar[ServiceEntry.Resolution]
    NONE: ServiceEntry.Resolution
    STATIC: ServiceEntry.Resolution
    DNS: ServiceEntry.Resolution
    DNS_ROUND_ROBIN: ServiceEntry.Resolution
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    ports: _containers.RepeatedCompositeFieldContainer[ServicePort]
    location: ServiceEntry.Location
    resolution: ServiceEntry.Resolution
    endpoints: _containers.RepeatedCompositeFieldContainer[WorkloadEntry]
    def __init__(self, hosts: _Optional[_Iterable[str]] = ..., ports: _Optional[_Iterable[_Union[ServicePort, _Mapping]]] = ..., location: _Optional[_Union[ServiceEntry.Location, str]] = ..., resolution: _Optional[_Union[ServiceEntry.Resolution, str]] = ..., endpoints: _Optional[_Iterable[_Union[WorkloadEntry, _Mapping]]] = ...) -> None: ...

class ServicePort(_message.Message):
    __slots__ = ("number", "protocol", "name")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    number: int
    protocol: str
    name: str
    def __init__(self, number: _Optional[int] = ..., protocol: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class WorkloadEntry(_message.Message):
    __slots__ = ("address", "ports", "labels", "weight")
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    address: str
    ports: _containers.ScalarMap[str, int]
    labels: _containers.ScalarMap[str, str]
    weight: int
    def __init__(self, address: _Optional[str] = ..., ports: _Optional[_Mapping[str, int]] = ..., labels: _Optional[_Mapping[str, str]] = ..., weight: _Optional[int] = ...) -> None: ...
