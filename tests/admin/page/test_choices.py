"""What a person chooses to see on the live page: kinds of events, charts. In a real Chromium."""

from __future__ import annotations

import dataclasses
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from tests.fakes.browser import a_browser, a_page
from tests.fakes.live_stage import LiveStage, a_model
from xds_server.store.row import Kind

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

SHOWN = {
    "All but weights": set(Kind) - {Kind.WEIGHTS},
    "Decisions": {Kind.DECISION},
    "Proxies": {Kind.PROXY},
    "Operators": {Kind.OPERATOR},
    "Configuration": {Kind.CONFIG},
    "Weights": {Kind.WEIGHTS},
    "Mesh": {Kind.MESH},
    "Server": {Kind.PROCESS, Kind.STORE},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with a_browser() as browser:
        yield browser


@asynccontextmanager
async def opened(browser, stage: LiveStage, **options):
    async with stage.serving(), a_page(browser, stage.url, **options) as page:
        yield page


async def test_every_kind_of_event_can_be_shown_alone_and_new_ones_keep_to_the_choice(browser):
    stage = LiveStage()
    for kind in Kind:
        stage.happened(f"first_{kind}", kind=kind)
    async with opened(browser, stage) as page:
        choice = page.locator("#events-kind")
        assert set(await choice.locator("option").all_inner_texts()) == set(SHOWN)
        rows = page.locator("#events li b")
        for label, kinds in SHOWN.items():
            await choice.select_option(label=label)
            await expect(rows).to_have_count(len(kinds))
            assert set(await rows.all_inner_texts()) == {f"first {kind}" for kind in kinds}
        await choice.select_option(label="Operators")
        stage.happened("instance_down", kind=Kind.DECISION)
        stage.happened("drain_requested", kind=Kind.OPERATOR, who="ada", why="a new fan")
        await expect(rows).to_have_text(["drain requested", "first operator"])
        await choice.select_option(label="All but weights")
        await expect(rows.first).to_have_text("drain requested")
        await expect(rows).to_have_count(len(Kind) + 1)


async def test_the_chart_shows_the_endpoint_weights_of_a_tier_that_is_chosen(browser):
    stage = LiveStage()
    async with opened(browser, stage) as page:
        model = page.get_by_role("region", name="Model chat")
        picture = model.get_by_role("img")
        await expect(picture).to_have_count(1)
        await expect(picture).to_have_attribute(
            "aria-label",
            "Weights of chat over time; now primary 100.0 %, fallback 0.0 %, static 0.0 %",
        )
        choice = model.get_by_label("Chart of")
        assert await choice.locator("option").all_inner_texts() == [
            "Tiers", "Endpoints of primary", "Endpoints of fallback",
        ]  # fmt: skip
        await choice.select_option(label="Endpoints of primary")
        await expect(picture).to_have_count(1)
        await expect(picture).to_have_attribute(
            "aria-label", "Weights of chat/primary over time; now chat-0 100.0 %, chat-1 100.0 %"
        )
        stage.models = [a_model(1000, weight=430)]
        await expect(picture).to_have_attribute(
            "aria-label", "Weights of chat/primary over time; now chat-0 43.0 %, chat-1 100.0 %"
        )
        lines = picture.locator("path.line")
        await expect(lines).to_have_count(2)
        assert "V" in await lines.last.get_attribute("d")
        await expect(model).to_contain_text("since the page was opened (100 % = average capacity)")
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()

        axis = model.locator("figure:visible .axis span")
        await expect(axis).to_have_text(["150 %", "75", "0"])
        stage.models = [a_model(1000, weight=2300)]
        await expect(axis).to_have_text(["250 %", "125", "0"])
        stage.models = [a_model(1000, weight=430, many=3)]
        await expect(picture).to_have_attribute(
            "aria-label",
            "Weights of chat/primary over time; now chat-0 43.0 %, chat-1 100.0 %, chat-2 100.0 %",
        )
        await expect(choice).to_have_value("primary")


@pytest.mark.parametrize("width", [1280, 360])
async def test_of_many_endpoints_those_are_drawn_that_stand_out(browser, width):
    stage = LiveStage()
    model = a_model(many=39)
    primary, *others = model.tiers
    instances = list(primary.instances)
    for index in (3, 17, 38):
        instances[index] = dataclasses.replace(instances[index], weight=300 + index)
    stage.models = [
        dataclasses.replace(
            model, tiers=(dataclasses.replace(primary, instances=tuple(instances)), *others)
        )
    ]
    async with opened(browser, stage, viewport={"width": width, "height": 800}) as page:
        await page.get_by_label("Chart of").select_option(label="Endpoints of primary")
        figure = page.locator("figure.endpoints:visible")
        await expect(figure).to_contain_text("the 8 of 39 that stand out")
        names = await figure.locator(".key").all_inner_texts()
        assert len(names) == 8
        assert {"chat-3", "chat-17", "chat-38"} <= set(names)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
