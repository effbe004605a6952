"""A scripted agent: what it says on a telemetry stream is up to the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.waiting import PATIENCE_S

METHOD = "/fleet.telemetry.v1.Telemetry/Report"


class ScriptedAgent:
    """One stream. Make it with `connected_agent`."""

    def __init__(self, call: Any, name: str) -> None:
        self.call = call
        self.name = name
        self.refusals: asyncio.Queue[pb.Refusal] = asyncio.Queue()
        self.acks: asyncio.Queue[pb.Ack] = asyncio.Queue()
        self.welcome: asyncio.Future[pb.Welcome] = asyncio.get_running_loop().create_future()
        self._sequence = 0

    async def say(self, message: pb.AgentMessage | bytes) -> None:
        body = message if isinstance(message, bytes) else message.SerializeToString()
        await self.call.write(body)

    async def hello(self, epoch: int = 1, instances: Iterable[str | pb.OwnedInstance] = ()) -> None:
        owned = [
            each if isinstance(each, pb.OwnedInstance) else pb.OwnedInstance(name=each)
            for each in instances
        ]
        await self.say(
            pb.AgentMessage(
                hello=pb.Hello(agent=self.name, epoch=epoch, instances=owned, protocol=1)
            )
        )

    async def greet(self, *instances: str | pb.OwnedInstance, epoch: int = 1) -> None:
        """Say hello, and wait to be welcome."""
        await self.hello(epoch, instances)
        await asyncio.wait_for(self.welcome, PATIENCE_S)

    def sample(self, instance: str, **facts: Any) -> pb.Sample:
        """Make the next sample of an instance: engine facts, and `draining`, by name."""
        self._sequence += 1
        draining = facts.pop("draining", False)
        values = {"state": pb.ENGINE_STATE_UP, "kv_ratio": 0.2, "waiting": 0.0, "running": 1.0}
        return pb.Sample(
            instance=instance,
            sequence=self._sequence,
            draining=draining,
            engine=pb.EngineFacts(**(values | facts)),
        )

    async def send(self, *samples: pb.Sample) -> None:
        await self.say(pb.AgentMessage(samples=pb.Samples(samples=samples)))

    async def report(self, instance: str, **facts: Any) -> None:
        await self.send(self.sample(instance, **facts))

    async def refusal(self, timeout_s: float = PATIENCE_S) -> pb.Refusal:
        return await asyncio.wait_for(self.refusals.get(), timeout_s)

    async def ack(self, timeout_s: float = PATIENCE_S) -> pb.Ack:
        return await asyncio.wait_for(self.acks.get(), timeout_s)

    async def ended(self, timeout_s: float = PATIENCE_S) -> grpc.StatusCode:
        """Wait until the server has ended the stream and return its status."""
        code: grpc.StatusCode = await asyncio.wait_for(self.call.code(), timeout_s)
        return code

    async def done(self) -> None:
        """End the stream on purpose."""
        await self.call.done_writing()

    async def read(self) -> None:
        try:
            while (body := await self.call.read()) is not grpc.aio.EOF:
                message = pb.ServerMessage.FromString(body)
                if message.HasField("welcome"):
                    self.welcome.set_result(message.welcome)
                elif message.HasField("refusal"):
                    self.refusals.put_nowait(message.refusal)
                else:
                    self.acks.put_nowait(message.ack)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        if not self.welcome.done():
            self.welcome.cancel()


@asynccontextmanager
async def connected_agent(
    target: str, name: str = "host-1", *, token: str | None = None
) -> AsyncIterator[ScriptedAgent]:
    """Open a telemetry stream; the test says hello."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.stream_stream(METHOD)(metadata=metadata)
        agent = ScriptedAgent(call, name)
        reader = asyncio.create_task(agent.read(), name=f"agent-{name}")
        try:
            yield agent
        finally:
            call.cancel()
            await asyncio.gather(reader, return_exceptions=True)
