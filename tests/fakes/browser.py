"""A real Chromium, headless, on a profile of its own, that reaches nothing but this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium_binary() -> str:
    """Return the Chromium to run: `$CHROMIUM`, or what is on the PATH (see tests/admin/page/install.sh)."""
    for name in (os.environ.get("CHROMIUM"), *NAMES):
        if name and (found := shutil.which(name)):
            return found
    raise AssertionError("there is no Chromium: run tests/admin/page/install.sh")


@asynccontextmanager
async def a_browser() -> AsyncIterator[Browser]:
    """Run a browser for as long as the block lasts."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium_binary(), args=list(FLAGS)
        )
        try:
            yield browser
        finally:
            await browser.close()


class Witness:
    """What a page did that nobody asked for."""

    def __init__(self, page: Page, origin: str) -> None:
        self.complaints: list[str] = []
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", lambda request: self._asked(request.url, origin))

    def _said(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.complaints.append(f"{kind}: {text}")

    def _asked(self, url: str, origin: str) -> None:
        if not url.startswith(origin):
            self.complaints.append(f"asked another host: {url}")


@asynccontextmanager
async def a_page(browser: Browser, url: str, **options: Any) -> AsyncIterator[Page]:
    """Open the live page in a context of its own and wait until it shows a fleet."""
    context = await browser.new_context(**options)
    try:
        page = await context.new_page()
        page.set_default_timeout(8000)
        await page.goto(url)
        await page.wait_for_selector(".cell")
        yield page
    finally:
        await context.close()
