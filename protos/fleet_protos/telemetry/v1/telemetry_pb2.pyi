from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_STATE_UNSPECIFIED: _ClassVar[EngineState]
    ENGINE_STATE_UP: _ClassVar[EngineState]
    ENGINE_STATE_LOADING: _ClassVar[EngineState]
    ENGINE_STATE_DOWN: _ClassVar[EngineState]
    ENGINE_STATE_HUNG: _ClassVar[EngineState]
    ENGINE_STATE_SLEEPING: _ClassVar[EngineState]

class TokenResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_RESULT_UNSPECIFIED: _ClassVar[TokenResult]
    TOKEN_RESULT_OK: _ClassVar[TokenResult]
    TOKEN_RESULT_BUSY: _ClassVar[TokenResult]
    TOKEN_RESULT_SILENT: _ClassVar[TokenResult]
    TOKEN_RESULT_FAILED: _ClassVar[TokenResult]

class GpuHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GPU_HEALTH_UNSPECIFIED: _ClassVar[GpuHealth]
    GPU_HEALTH_OK: _ClassVar[GpuHealth]
    GPU_HEALTH_THROTTLED: _ClassVar[GpuHealth]
    GPU_HEALTH_RESET_REQUIRED: _ClassVar[GpuHealth]
    GPU_HEALTH_LOST: _ClassVar[GpuHealth]

class MemoryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_KIND_UNSPECIFIED: _ClassVar[MemoryKind]
    MEMORY_KIND_DEDICATED: _ClassVar[MemoryKind]
    MEMORY_KIND_UNIFIED: _ClassVar[MemoryKind]
    MEMORY_KIND_COHERENT: _ClassVar[MemoryKind]

class FactStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FACT_STATUS_UNSPECIFIED: _ClassVar[FactStatus]
    FACT_STATUS_OK: _ClassVar[FactStatus]
    FACT_STATUS_UNSUPPORTED: _ClassVar[FactStatus]
    FACT_STATUS_ERROR: _ClassVar[FactStatus]
ENGINE_STATE_UNSPECIFIED: EngineState
ENGINE_STATE_UP: EngineState
ENGINE_STATE_LOADING: EngineState
ENGINE_STATE_DOWN: EngineState
ENGINE_STATE_HUNG: EngineState
ENGINE_STATE_SLEEPING: EngineState
TOKEN_RESULT_UNSPECIFIED: TokenResult
TOKEN_RESULT_OK: TokenResult
TOKEN_RESULT_BUSY: TokenResult
TOKEN_RESULT_SILENT: TokenResult
TOKEN_RESULT_FAILED: TokenResult
GPU_HEALTH_UNSPECIFIED: GpuHealth
GPU_HEALTH_OK: GpuHealth
GPU_HEALTH_THROTTLED: GpuHealth
GPU_HEALTH_RESET_REQUIRED: GpuHealth
GPU_HEALTH_LOST: GpuHealth
MEMORY_KIND_UNSPECIFIED: MemoryKind
MEMORY_KIND_DEDICATED: MemoryKind
MEMORY_KIND_UNIFIED: MemoryKind
MEMORY_KIND_COHERENT: MemoryKind
FACT_STATUS_UNSPECIFIED: FactStatus
FACT_STATUS_OK: FactStatus
FACT_STATUS_UNSUPPORTED: FactStatus
FACT_STATUS_ERROR: FactStatus

class AgentMessage(_message.Message):
    __slots__ = ("hello", "samples")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    samples: Samples
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., samples: _Optional[_Union[Samples, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("agent", "epoch", "instances", "agent_version", "protocol", "config_hash")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CONFIG_HASH_FIELD_NUMBER: _ClassVar[int]
    agent: str
    epoch: int
    instances: _containers.RepeatedCompositeFieldContainer[OwnedInstance]
    agent_version: str
    protocol: int
    config_hash: str
    def __init__(self, agent: _Optional[str] = ..., epoch: _Optional[int] = ..., instances: _Optional[_Iterable[_Union[OwnedInstance, _Mapping]]] = ..., agent_version: _Optional[str] = ..., protocol: _Optional[int] = ..., config_hash: _Optional[str] = ...) -> None: ...

class OwnedInstance(_message.Message):
    __slots__ = ("name", "address", "model", "tier", "capacity", "engine", "gpu_uuids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    model: str
    tier: str
    capacity: float
    engine: str
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., model: _Optional[str] = ..., tier: _Optional[str] = ..., capacity: _Optional[float] = ..., engine: _Optional[str] = ..., gpu_uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class Samples(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    def __init__(self, samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("instance", "sample_age_ms", "sequence", "engine", "gpu", "devices", "draining")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    instance: str
    sample_age_ms: int
    sequence: int
    engine: EngineFacts
    gpu: GpuFacts
    devices: _containers.RepeatedCompositeFieldContainer[GpuDevice]
    draining: bool
    def __init__(self, instance: _Optional[str] = ..., sample_age_ms: _Optional[int] = ..., sequence: _Optional[int] = ..., engine: _Optional[_Union[EngineFacts, _Mapping]] = ..., gpu: _Optional[_Union[GpuFacts, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[GpuDevice, _Mapping]]] = ..., draining: _Optional[bool] = ...) -> None: ...

class TokenProbe(_message.Message):
    __slots__ = ("result", "row", "took_ms")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    result: TokenResult
    row: int
    took_ms: int
    def __init__(self, result: _Optional[_Union[TokenResult, str]] = ..., row: _Optional[int] = ..., took_ms: _Optional[int] = ...) -> None: ...

class EngineFacts(_message.Message):
    __slots__ = ("state", "detail", "kv_ratio", "kv_ratio_mean", "waiting", "running", "preemptions_total", "prompt_tokens_total", "generation_tokens_total", "finished_total", "slots", "kv_capacity_tokens", "reserved_ratio", "restarts", "out_of_memory", "token_probe")
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    KV_RATIO_FIELD_NUMBER: _ClassVar[int]
    KV_RATIO_MEAN_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FINISHED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_RATIO_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_PROBE_FIELD_NUMBER: _ClassVar[int]
    state: EngineState
    detail: str
    kv_ratio: float
    kv_ratio_mean: float
    waiting: float
    running: float
    preemptions_total: float
    prompt_tokens_total: float
    generation_tokens_total: float
    finished_total: float
    slots: float
    kv_capacity_tokens: float
    reserved_ratio: float
    restarts: int
    out_of_memory: bool
    token_probe: TokenProbe
    def __init__(self, state: _Optional[_Union[EngineState, str]] = ..., detail: _Optional[str] = ..., kv_ratio: _Optional[float] = ..., kv_ratio_mean: _Optional[float] = ..., waiting: _Optional[float] = ..., running: _Optional[float] = ..., preemptions_total: _Optional[float] = ..., prompt_tokens_total: _Optional[float] = ..., generation_tokens_total: _Optional[float] = ..., finished_total: _Optional[float] = ..., slots: _Optional[float] = ..., kv_capacity_tokens: _Optional[float] = ..., reserved_ratio: _Optional[float] = ..., restarts: _Optional[int] = ..., out_of_memory: _Optional[bool] = ..., token_probe: _Optional[_Union[TokenProbe, _Mapping]] = ...) -> None: ...

class GpuFacts(_message.Message):
    __slots__ = ("health", "detail", "memory_kind", "vram_ratio", "vram_free_bytes", "shared")
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_KIND_FIELD_NUMBER: _ClassVar[int]
    VRAM_RATIO_FIELD_NUMBER: _ClassVar[int]
    VRAM_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    health: GpuHealth
    detail: str
    memory_kind: MemoryKind
    vram_ratio: float
    vram_free_bytes: int
    shared: bool
    def __init__(self, health: _Optional[_Union[GpuHealth, str]] = ..., detail: _Optional[str] = ..., memory_kind: _Optional[_Union[MemoryKind, str]] = ..., vram_ratio: _Optional[float] = ..., vram_free_bytes: _Optional[int] = ..., shared: _Optional[bool] = ...) -> None: ...

class Fact(_message.Message):
    __slots__ = ("status", "value", "error")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    status: FactStatus
    value: float
    error: str
    def __init__(self, status: _Optional[_Union[FactStatus, str]] = ..., value: _Optional[float] = ..., error: _Optional[str] = ...) -> None: ...

class GpuDevice(_message.Message):
    __slots__ = ("uuid", "index", "name", "memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes", "memory_free_bytes", "utilization_ratio", "temperature_celsius", "power_watts", "clocks_event_reasons", "recovery_action", "recent_xids", "parent_uuid", "health")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_RATIO_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_EVENT_REASONS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_ACTION_FIELD_NUMBER: _ClassVar[int]
    RECENT_XIDS_FIELD_NUMBER: _ClassVar[int]
    PARENT_UUID_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    name: str
    memory_total_bytes: Fact
    memory_used_bytes: Fact
    memory_reserved_bytes: Fact
    memory_free_bytes: Fact
    utilization_ratio: Fact
    temperature_celsius: Fact
    power_watts: Fact
    clocks_event_reasons: Fact
    recovery_action: Fact
    recent_xids: _containers.RepeatedScalarFieldContainer[int]
    parent_uuid: str
    health: GpuHealth
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., name: _Optional[str] = ..., memory_total_bytes: _Optional[_Union[Fact, _Mapping]] = ..., memory_used_bytes: _Optional[_Union[Fact, _Mapping]] = ..., memory_reserved_bytes: _Optional[_Union[Fact, _Mapping]] = ..., memory_free_bytes: _Optional[_Union[Fact, _Mapping]] = ..., utilization_ratio: _Optional[_Union[Fact, _Mapping]] = ..., temperature_celsius: _Optional[_Union[Fact, _Mapping]] = ..., power_watts: _Optional[_Union[Fact, _Mapping]] = ..., clocks_event_reasons: _Optional[_Union[Fact, _Mapping]] = ..., recovery_action: _Optional[_Union[Fact, _Mapping]] = ..., recent_xids: _Optional[_Iterable[int]] = ..., parent_uuid: _Optional[str] = ..., health: _Optional[_Union[GpuHealth, str]] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("welcome", "refusal", "ack")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refusal: Refusal
    ack: Ack
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("interval_ms", "server_version", "protocol")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    server_version: str
    protocol: int
    def __init__(self, interval_ms: _Optional[int] = ..., server_version: _Optional[str] = ..., protocol: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("instance", "code", "reason")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CODE_UNSPECIFIED: _ClassVar[Refusal.Code]
        UNAUTHENTICATED: _ClassVar[Refusal.Code]
        UNKNOWN_INSTANCE: _ClassVar[Refusal.Code]
        OWNED_BY_ANOTHER_AGENT: _ClassVar[Refusal.Code]
        STALE_EPOCH: _ClassVar[Refusal.Code]
        BAD_MESSAGE: _ClassVar[Refusal.Code]
    CODE_UNSPECIFIED: Refusal.Code
    UNAUTHENTICATED: Refusal.Code
    UNKNOWN_INSTANCE: Refusal.Code
    OWNED_BY_ANOTHER_AGENT: Refusal.Code
    STALE_EPOCH: Refusal.Code
    BAD_MESSAGE: Refusal.Code
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    instance: str
    code: Refusal.Code
    reason: str
    def __init__(self, instance: _Optional[str] = ..., code: _Optional[_Union[Refusal.Code, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("taken",)
    class Taken(_message.Message):
        __slots__ = ("instance", "sequence", "drained")
        INSTANCE_FIELD_NUMBER: _ClassVar[int]
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        DRAINED_FIELD_NUMBER: _ClassVar[int]
        instance: str
        sequence: int
        drained: bool
        def __init__(self, instance: _Optional[str] = ..., sequence: _Optional[int] = ..., drained: _Optional[bool] = ...) -> None: ...
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    taken: _containers.RepeatedCompositeFieldContainer[Ack.Taken]
    def __init__(self, taken: _Optional[_Iterable[_Union[Ack.Taken, _Mapping]]] = ...) -> None: ...
