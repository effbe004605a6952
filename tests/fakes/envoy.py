"""A real Envoy under a test's control: started on port 0, awaited until ready, stopped by its pid.

    async with running_envoy(bootstrap, tmp_path) as envoy:
        base = f"http://127.0.0.1:{await envoy.listener_port('llm')}"
        assert await envoy.stat("cluster_manager.cds.update_rejected") == 0

The admin port of the bootstrap is replaced by 0 and discovered, so tests never collide; give
listeners port 0 as well and ask `listener_port` for what the kernel chose.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from tests.fakes.waiting import PATIENCE_S

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
_ROOT = Path(__file__).resolve().parents[2]


class EnvoyError(AssertionError):
    """Envoy ended, or did not do in time what was awaited; the text holds the end of its log."""


def envoy_path() -> Path:
    """Return the Envoy binary: `$ENVOY`, or the one that `make setup` installed."""
    path = Path(os.environ.get("ENVOY") or _ROOT / ".tools/envoy/envoy/_bin/envoy")
    if not path.is_file():
        raise EnvoyError(f"no Envoy at {path}: run `make setup` or set ENVOY")
    return path


async def eventually(
    probe: Callable[[], Awaitable[T]], *, what: str = "", timeout_s: float = PATIENCE_S
) -> T:
    """Return the first truthy result of `probe`, asked every few ms until the deadline.

    A refused connection or a failed assertion counts as "not yet".
    """
    deadline = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            result = await probe()
        except (AssertionError, aiohttp.ClientError, OSError, LookupError) as error:
            last = error
        else:
            if result:
                return result
            last = result
        if time.monotonic() > deadline:
            raise EnvoyError(f"not within {timeout_s} s: {what or probe}; last seen: {last!r}")
        await asyncio.sleep(0.01)


async def validate(bootstrap: Mapping[str, Any] | bytes, directory: Path) -> str:
    """Run `envoy --mode validate`; return its complaint, or "" when the bootstrap is good.

    Args:
        bootstrap: as JSON, or a serialized Bootstrap message.
        directory: where its file may be written.
    """
    if isinstance(bootstrap, bytes):
        config = directory / "validate.pb"
        config.write_bytes(bootstrap)
    else:
        config = directory / "validate.json"
        config.write_text(json.dumps(bootstrap))
    process = await asyncio.create_subprocess_exec(
        *(str(envoy_path()), "--mode", "validate", "-c", str(config), "-l", "warning"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    text = out.decode(errors="replace")
    return "" if process.returncode == 0 else text or f"exit code {process.returncode}"


class RealEnvoy:
    """One running Envoy. Make it with `running_envoy`."""

    def __init__(
        self, process: asyncio.subprocess.Process, directory: Path, session: aiohttp.ClientSession
    ) -> None:
        self.process = process
        self.directory = directory
        self.admin_port = 0
        self._session = session

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def admin_url(self) -> str:
        return f"http://{LOOPBACK}:{self.admin_port}"

    def log(self) -> str:
        """Return everything that Envoy has logged so far."""
        path = self.directory / "envoy.log"
        return path.read_text(errors="replace") if path.exists() else ""

    async def get(self, path: str) -> str:
        """Return the text of an admin page."""
        async with self._session.get(self.admin_url + path) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise EnvoyError(f"admin {path}: {answer.status} {text[:300]}")
            return text

    async def get_json(self, path: str) -> Any:
        """Return a JSON admin page."""
        return json.loads(await self.get(path))

    async def post(self, path: str) -> str:
        """POST to an admin page, e.g. `/drain_listeners`."""
        async with self._session.post(self.admin_url + path) as answer:
            return await answer.text()

    async def is_live(self) -> bool:
        """Whether Envoy has finished its start: static and fetched resources are in use."""
        async with self._session.get(self.admin_url + "/ready") as answer:
            return answer.status == 200

    async def stats(self, pattern: str = "") -> dict[str, int]:
        """Return counters and gauges whose name matches the regular expression."""
        query = f"&filter={pattern}" if pattern else ""
        page = await self.get_json(f"/stats?format=json{query}")
        return {each["name"]: each["value"] for each in page["stats"] if "name" in each}

    async def stat(self, name: str) -> int:
        """Return one counter or gauge; one that Envoy never touched is 0."""
        return (await self.stats(f"^{name.replace('.', '[.]')}$")).get(name, 0)

    async def rejected(self) -> dict[str, int]:
        """Return every `update_rejected` above zero: empty when Envoy took all it was given."""
        return {name: n for name, n in (await self.stats("update_rejected")).items() if n}

    async def clusters(self) -> dict[str, list[dict[str, Any]]]:
        """Return the host statuses of every cluster by name, as the admin page gives them."""
        page = await self.get_json("/clusters?format=json")
        return {
            each["name"]: each.get("host_statuses", []) for each in page.get("cluster_statuses", [])
        }

    async def config_dump(self, resource: str = "") -> dict[str, Any]:
        """Return the configuration in use, endpoints included."""
        query = f"&resource={resource}" if resource else ""
        page: dict[str, Any] = await self.get_json(f"/config_dump?include_eds{query}")
        return page

    async def listener_port(self, name: str, *, timeout_s: float = PATIENCE_S) -> int:
        """Return the port that a listener got, waiting until Envoy has the listener."""

        async def probe() -> int | None:
            page = await self.get_json("/listeners?format=json")
            for each in page.get("listener_statuses", []):
                if each["name"] == name:
                    address = each["local_address"].get("socket_address", {})
                    port: int | None = address.get("port_value")
                    return port
            return None

        port = await self.until(probe, what=f"listener {name}", timeout_s=timeout_s)
        assert port is not None
        return port

    async def until(
        self, probe: Callable[[], Awaitable[T]], *, what: str = "", timeout_s: float = PATIENCE_S
    ) -> T:
        """Like `eventually`, but end at once, with the log, when Envoy dies meanwhile."""

        async def alive() -> T:
            if self.process.returncode is not None:
                raise _EndedError
            return await probe()

        try:
            return await eventually(alive, what=what, timeout_s=timeout_s)
        except _EndedError:
            code = self.process.returncode
            raise EnvoyError(f"Envoy ended with {code}:\n{self.log()[-4000:]}") from None
        except EnvoyError as error:
            raise EnvoyError(f"{error}\n{self.log()[-4000:]}") from None

    async def stop(self) -> None:
        """End this Envoy, by its pid, and wait until it is gone."""
        if self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), PATIENCE_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class _EndedError(Exception):
    """Envoy is gone: waiting longer is useless."""


@asynccontextmanager
async def running_envoy(
    bootstrap: Mapping[str, Any],
    directory: Path,
    *,
    wait_live: bool = True,
    concurrency: int = 1,
    log_level: str = "warning",
    arguments: Sequence[str] = (),
    timeout_s: float = PATIENCE_S,
) -> AsyncIterator[RealEnvoy]:
    """Run Envoy with a bootstrap for as long as the block lasts.

    Args:
        bootstrap: the bootstrap as JSON; its admin port is replaced by 0.
        directory: an empty folder for configuration, log and Envoy's files; one per Envoy.
        wait_live: wait for `/ready`; False = only for the admin page (e.g. no control plane yet).
        concurrency: worker threads.
        log_level: of Envoy's log, `directory / "envoy.log"`.
        arguments: more command line arguments.
        timeout_s: how long the start may take.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(dict(bootstrap))
    config["admin"] = {"address": {"socket_address": {"address": LOOPBACK, "port_value": 0}}}
    (directory / "bootstrap.json").write_text(json.dumps(config, indent=1))
    address = directory / "admin.txt"
    with (directory / "envoy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(str(envoy_path()), "-c", str(directory / "bootstrap.json"), "-l", log_level),
            *("--concurrency", str(concurrency), "--disable-hot-restart"),
            *("--admin-address-path", str(address), *arguments),
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
        )
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
        envoy = RealEnvoy(process, directory, session)
        try:

            async def admin() -> bool:
                envoy.admin_port = int(address.read_text().rpartition(":")[2] or 0)
                return envoy.admin_port > 0

            await envoy.until(admin, what="admin address", timeout_s=timeout_s)
            if wait_live:
                await envoy.until(envoy.is_live, what="Envoy live", timeout_s=timeout_s)
            yield envoy
        finally:
            await envoy.stop()
