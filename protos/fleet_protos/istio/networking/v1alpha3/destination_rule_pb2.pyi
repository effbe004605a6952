import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import wrappers_pb2 as _wrappers_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DestinationRule(_message.Message):
    __slots__ = ("host", "traffic_policy", "subsets")
    HOST_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_POLICY_FIELD_NUMBER: _ClassVar[int]
    SUBSETS_FIELD_NUMBER: _ClassVar[int]
    host: str
    traffic_policy: TrafficPolicy
    subsets: _containers.RepeatedCompositeFieldContainer[Subset]
    def __init__(self, host: _Optional[str] = ..., traffic_policy: _Optional[_Union[TrafficPolicy, _Mapping]] = ..., subsets: _Optional[_Iterable[_Union[Subset, _Mapping]]] = ...) -> None: ...

class Subset(_message.Message):
    __slots__ = ("name", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TrafficPolicy(_message.Message):
    __slots__ = ("load_balancer", "outlier_detection")
    LOAD_BALANCER_FIELD_NUMBER: _ClassVar[int]
    OUTLIER_DETECTION_FIELD_NUMBER: _ClassVar[int]
    load_balancer: LoadBalancerSettings
    outlier_detection: OutlierDetection
    def __init__(self, load_balancer: _Optional[_Union[LoadBalancerSettings, _Mapping]] = ..., outlier_detection: _Optional[_Union[OutlierDetection, _Mapping]] = ...) -> None: ...

class LoadBalancerSettings(_message.Message):
    __slots__ = ("simple", "locality_lb_setting")
    class SimpleLB(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[LoadBalancerSettings.SimpleLB]
        LEAST_CONN: _ClassVar[LoadBalancerSettings.SimpleLB]
        RANDOM: _ClassVar[LoadBalancerSettings.SimpleLB]
        PASSTHROUGH: _ClassVar[LoadBalancerSettings.SimpleLB]
        ROUND_ROBIN: _ClassVar[LoadBalancerSettings.SimpleLB]
        LEAST_REQUEST: _ClassVar[LoadBalancerSettings.SimpleLB]
    UNSPECIFIED: LoadBalancerSettings.SimpleLB
    LEAST_CONN: LoadBalancerSettings.SimpleLB
    RANDOM: LoadBalancerSettings.SimpleLB
    PASSTHROUGH: LoadBalancerSettings.SimpleLB
    ROUND_ROBIN: LoadBalancerSettings.SimpleLB
    LEAST_REQUEST: LoadBalancerSettings.SimpleLB
    SIMPLE_FIELD_NUMBER: _ClassVar[int]
    LOCALITY_LB_SETTING_FIELD_NUMBER: _ClassVar[int]
    simple: LoadBalancerSettings.SimpleLB
    locality_lb_setting: LocalityLoadBalancerSetting
    def __init__(self, simple: _Optional[_Union[LoadBalancerSettings.SimpleLB, str]] = ..., locality_lb_setting: _Optional[_Union[LocalityLoadBalancerSetting, _Mapping]] = ...) -> None: ...

class LocalityLoadBalancerSetting(_message.Message):
    __slots__ = ("enabled",)
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    enabled: _wrappers_pb2.BoolValue
    def __init__(self, enabled: _Optional[_Union[_wrappers_pb2.BoolValue, _Mapping]] = ...) -> None: ...

class OutlierDetection(_message.Message):
    __slots__ = ("interval", "base_ejection_time", "max_ejection_percent", "consecutive_5xx_errors")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    BASE_EJECTION_TIME_FIELD_NUMBER: _ClassVar[int]
    MAX_EJECTION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CONSECUTIVE_5XX_ERRORS_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    base_ejection_time: _duration_pb2.Duration
    max_ejection_percent: int
    consecutive_5xx_errors: _wrappers_pb2.UInt32Value
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., base_ejection_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_ejection_percent: _Optional[int] = ..., consecutive_5xx_errors: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ...) -> None: ...
