"""A real Prometheus and promtool, where `make prometheus` put them."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.fakes.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
_LISTENING = re.compile(r'msg="Listening on" address=(\S+)')
_LABELS = re.compile(r"\{[^{}]*\}")
_LISTS = re.compile(
    r"\b(?:by|without|on|ignoring|group_left|group_right)\b\s*(?:\(([^()]*)\))?", re.IGNORECASE
)
_KEYWORDS = frozenset({"and", "or", "unless", "bool", "offset"})


def program(name: str) -> Path:
    """Return the path of `prometheus` or `promtool`."""
    path = ROOT / ".tools/prometheus/usr/bin" / name
    assert path.exists(), f"no {name} at {path}: make prometheus"
    return path


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool in the repository and return what it said."""
    return subprocess.run(
        [program("promtool"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )


def metrics_of(expression: str) -> set[str]:
    """Return the names of the metrics that a PromQL expression reads."""
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", expression)
    bare = re.sub(r"\[[^\]]*\]", "", _LISTS.sub(" ", _LABELS.sub("", bare)))
    words = re.finditer(r"(?<![\w.$])[a-zA-Z_:][\w:]*\b(?!\s*\()", bare)
    return {word[0] for word in words} - _KEYWORDS


def labels_of(expression: str) -> set[str]:
    """Return the names of the labels that a PromQL expression selects or groups by."""
    found = set()
    for selector in _LABELS.findall(expression):
        found |= set(re.findall(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)", selector))
    for names in _LISTS.findall(re.sub(r"\"[^\"]*\"", "", expression)):
        found |= {each.strip() for each in names.split(",") if each.strip()}
    return found


class RealPrometheus:
    """One running Prometheus. Make it with `running_prometheus`."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def api(self, path: str, **parameters: str) -> Any:
        """Return the data of an API call."""
        async with self._session.get(f"{self.url}/api/v1/{path}", params=parameters) as answer:
            body = await answer.json()
        assert body["status"] == "success", body
        return body["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression gives now."""
        data = await self.api("query", query=expression)
        assert data["resultType"] == "vector", data
        return data["result"]


@asynccontextmanager
async def running_prometheus(
    targets: dict[str, str], rules: Path, directory: Path
) -> AsyncIterator[RealPrometheus]:
    """Scrape `targets` (host:port by job) every 200 ms for as long as the block lasts."""
    directory.mkdir()
    config = directory / "prometheus.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
                "rule_files": [str(rules)],
                "scrape_configs": [
                    {"job_name": job, "static_configs": [{"targets": [target]}]}
                    for job, target in targets.items()
                ],
            }
        )
    )
    process = await asyncio.create_subprocess_exec(
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        stderr=asyncio.subprocess.PIPE,
        cwd=directory,
    )
    said: list[str] = []
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def follow() -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            said.append(line.decode())
            if (found := _LISTENING.search(said[-1])) and not address.done():
                address.set_result(found[1])
        if not address.done():
            address.set_exception(AssertionError("Prometheus ended:\n" + "".join(said)))

    following = asyncio.create_task(follow(), name="prometheus-log")
    try:
        async with aiohttp.ClientSession() as session:
            yield RealPrometheus(f"http://{await asyncio.wait_for(address, PATIENCE_S)}", session)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), PATIENCE_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        await following
