"""From the sentence at the top to what it is about, tiers with many instances, and machines that slept."""

from __future__ import annotations

import dataclasses
import time

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.fakes.browser import a_browser, a_page
from tests.fakes.live_stage import LiveStage, a_model
from xds_server.core.plan import EndpointHealth, FaultState, Level, Reason

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

DOWN = {"state": FaultState.DOWN, "health": EndpointHealth.UNHEALTHY, "ceiling": 0.0}
SLEEP = """() => {
    const ticks = performance.now(), wall = Date.now;
    performance.now = () => ticks;
    Date.now = () => wall() + 3600e3;
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with a_browser() as browser:
        yield browser


async def test_what_the_verdict_names_leads_to_its_explanation_and_keeps_the_focus(browser):
    stage = LiveStage()
    stage.models = [a_model(many=60), a_model(name="code", many=60, **DOWN)]
    async with stage.serving(), a_page(browser, stage.url) as page:
        verdict = page.locator("#verdict")
        await expect(verdict).to_contain_text("code-0 down")
        named = verdict.get_by_role("button", name="code-0")
        cell = page.locator("button.cell", has_text="code-0")
        assert not await cell.is_visible() or not await _is_in_view(cell)
        await named.focus()
        await page.keyboard.press("Enter")
        panel = page.get_by_role("complementary", name="code-0")
        await expect(panel).to_be_visible()
        assert await _is_in_view(cell)
        await page.keyboard.press("Escape")
        await expect(named).to_be_focused()
        tier = dataclasses.replace(stage.models[0].tiers[0], level=Level.CRITICAL, spill=0.3)
        stage.models[0] = dataclasses.replace(
            stage.models[0], tiers=(tier, *stage.models[0].tiers[1:])
        )
        await expect(verdict).to_contain_text("chat/primary critical, passes on 30 %")
        await expect(named).to_be_focused()
        await verdict.get_by_role("button", name="chat/primary").click()
        await expect(page.get_by_role("complementary", name="chat/primary")).to_be_visible()


async def _is_in_view(cell) -> bool:
    return await cell.evaluate(
        "(node) => { const { top, bottom } = node.getBoundingClientRect();"
        " return top >= 0 && bottom <= innerHeight; }"
    )


async def test_of_many_instances_those_that_are_as_they_should_be_take_less_room(browser):
    stage = LiveStage()
    stage.models = [a_model(many=40, **DOWN)]
    stage.observed["chat-7"] = time.monotonic() - 90
    async with stage.serving(), a_page(browser, stage.url) as page:
        state = {
            name: page.locator("li", has_text=name).first.locator(".state")
            for name in ("chat-0", "chat-7", "chat-9", "chat-small")
        }
        await expect(state["chat-0"]).to_be_visible()
        await expect(state["chat-9"]).to_be_hidden()
        await expect(state["chat-small"]).to_be_visible()
        old = page.locator("li", has_text="chat-7").locator(".age")
        await expect(old).to_be_visible()
        await expect(old).to_contain_text("old")


async def test_draining_the_last_of_a_tier_is_asked_with_what_follows(browser):
    stage = LiveStage()
    async with stage.serving(), a_page(browser, stage.url) as page:
        for name, warning in (
            (
                "chat-small",
                "It is the last of chat/fallback that takes requests: they go to static.",
            ),
            ("chat-0", ""),
        ):
            await page.locator("button.cell", has_text=name).click()
            await page.get_by_role("button", name="Drain…").click()
            await expect(page.locator("#confirm-warning")).to_have_text(warning)
            await page.get_by_role("button", name="Cancel").click()


async def test_a_tier_is_offered_what_those_before_it_pass_on(browser):
    stage = LiveStage()
    first = stage.models[0]
    primary = dataclasses.replace(first.tiers[0], spill=0.3, demand=12.0)
    unknown = dataclasses.replace(a_model(name="code").tiers[0], demand=None, capacity=None)
    stage.models = [
        dataclasses.replace(first, tiers=(primary, *first.tiers[1:])),
        dataclasses.replace(a_model(name="code"), tiers=(unknown, *a_model(name="code").tiers[1:])),
    ]
    async with stage.serving(), a_page(browser, stage.url) as page:
        for tier, flow in (
            ("chat/primary", "12.0 / 20.0 req/s"),
            ("chat/fallback", "3.6 / 20.0 req/s"),
            ("code/primary", "\u2013 / \u2013 req/s"),
        ):
            region = page.get_by_role("region", name=f"Tier {tier}", exact=True)
            await expect(region.locator(".flow")).to_have_text(flow)


async def test_an_explanation_says_nothing_twice_and_no_number_without_an_age(browser):
    said = "proxies saw its requests fail before that"
    basis = Reason(
        rule="engine_down",
        text=f"It gets nothing: its engine does not answer (connection refused), {said}.",
        inputs={"ceiling": 0.0, "detail": "connection refused", "proxies": said, "relapses": 2.0},
    )
    stage = LiveStage()
    stage.models = [a_model(**DOWN, basis=basis, pressure=0.64)]
    async with stage.serving(), a_page(browser, stage.url) as page:
        await page.locator("button.cell", has_text="chat-0").click()
        panel = page.get_by_role("complementary", name="chat-0")
        await expect(panel).to_contain_text("relapses")
        text = await panel.inner_text()
        assert text.count(said) == 1
        assert text.count("connection refused") == 1
        assert "0.64" not in text


async def test_a_machine_that_slept_does_not_take_old_numbers_for_young_ones(browser):
    stage = LiveStage()
    context = await browser.new_context()
    async with stage.serving():
        page = await context.new_page()
        await page.goto(stage.url)
        await page.wait_for_selector(".cell")
    await expect(page.locator("#lost")).to_be_visible()
    await page.evaluate(SLEEP)
    await expect(page.locator(".cell .age").first).to_have_text("⚠ 60 min old")
    await context.close()
