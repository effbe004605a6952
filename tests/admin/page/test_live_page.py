"""The live page in a real Chromium, over a fleet that is moved by hand."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from tests.fakes.browser import Witness, a_browser, a_page
from tests.fakes.live_stage import LiveStage, a_model, a_proxy
from tests.fakes.xds_process import ROOT, running_server
from xds_server.admin.live_page import MOST_CLIENTS
from xds_server.core.plan import EndpointHealth, FaultState, Freshness, Level
from xds_server.xds.syncz import SyncState

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with a_browser() as browser:
        yield browser


@asynccontextmanager
async def opened(browser, stage: LiveStage | None = None, **options):
    stage = stage or LiveStage()
    async with stage.serving(), a_page(browser, stage.url, **options) as page:
        yield stage, page


def in_trouble() -> LiveStage:
    """Make a fleet in which everything that can be shown is there."""
    stage = LiveStage()
    model = a_model(
        700,
        many=6,
        state=FaultState.DOWN,
        health=EndpointHealth.UNHEALTHY,
        ceiling=0.0,
        freshness=Freshness.BLIND,
        pressure=None,
    )
    primary, fallback, static = model.tiers
    instances = list(primary.instances)
    instances[1] = dataclasses.replace(instances[1], state=FaultState.RECOVERING, ceiling=0.3)
    instances[2] = dataclasses.replace(instances[2], pressure=0.97)
    primary = dataclasses.replace(
        primary, level=Level.CRITICAL, pressure=0.97, spill=0.3, instances=tuple(instances)
    )
    fallback = dataclasses.replace(fallback, level=Level.DEGRADED, pressure=0.85)
    stage.models = [dataclasses.replace(model, tiers=(primary, fallback, static))]
    stage.silent.add("chat-0")
    stage.observed["chat-3"] = time.monotonic() - 90
    stage.proxies += [
        a_proxy("edge-bad", SyncState.ERROR, "duplicate cluster"),
        a_proxy("edge-slow", SyncState.STALE),
    ]
    stage.happened(
        "instance_down",
        model="chat",
        tier="primary",
        instance="chat-0",
        before="healthy",
        after="down",
    )
    return stage


async def test_it_loads_without_complaint_and_asks_no_other_host(browser):
    stage = LiveStage()
    async with stage.serving():
        page = await browser.new_page()
        witness = Witness(page, stage.url)
        answer = await page.goto(stage.url)
        await page.wait_for_selector(".cell")
        policy = answer.headers["content-security-policy"]
        await page.wait_for_timeout(1200)  # a second of life, in which it could complain
        # The stage has no event store: that is the one thing that is not there.
        left = [each for each in witness.complaints if "404" not in each]
        assert left == []
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert await page.locator("script:not([src]), style, [style*=url]").count() == 0
        await expect(page.locator("#verdict")).to_contain_text("All well")


async def test_a_weight_that_changes_is_seen_within_a_second_and_only_that_is_drawn(browser):
    async with opened(browser) as (stage, page):
        share = page.get_by_role("region", name="Tier chat/primary").locator(".tierhead .share")
        await expect(share).to_have_text("100.0 %")
        await page.wait_for_timeout(600)
        await page.evaluate(
            """() => {
                window.touched = [];
                const seen = (list) => list.forEach((each) => {
                    const node = each.target.closest ? each.target : each.target.parentElement;
                    const cell = node?.closest("button.cell");
                    if (cell && !node.closest(".age")) window.touched.push(cell.querySelector(".name").textContent);
                });
                new MutationObserver(seen).observe(document.getElementById("fleet"), { subtree: true, childList: true, characterData: true });
            }"""
        )
        began = time.monotonic()
        stage.models = [a_model(1000, pressure=0.66), a_model(640, name="chat2")]
        cell = page.locator(".cell", has_text="chat-0")
        await expect(cell).to_contain_text("p 0.66")
        await expect(page.get_by_role("region", name="Model chat2")).to_contain_text("64.0 %")
        assert time.monotonic() - began < 10.0
        assert {each for each in await page.evaluate("window.touched") if "chat2" not in each} == {
            "chat-0"
        }
        began = time.monotonic()
        stage.models = [a_model(880, pressure=0.66)]
        await expect(share).to_have_text("88.0 %")
        assert time.monotonic() - began < 10.0
        await expect(page.get_by_role("region", name="Model chat2")).to_have_count(0)


async def test_trouble_is_said_in_words_and_an_unknown_age_is_never_a_number(browser):
    async with opened(browser, in_trouble()) as (_, page):
        verdict = page.locator("#verdict")
        for text in ("chat-0 down", "chat/primary critical, passes on 30 %", "edge-bad refuses"):
            await expect(verdict).to_contain_text(text)
        await expect(page.locator("#sum-instances")).to_have_text("6 of 7 serve")
        down = page.locator(".cell[data-state=down]")
        await expect(down.locator(".age")).to_have_text("never heard")
        await expect(down.locator(".numbers")).to_have_text("p \u2013")
        old = page.locator(".cell", has_text="chat-3").locator(".age")
        await expect(old).to_contain_text("old")
        first = page.locator("#proxies tbody tr").first
        await expect(first).to_contain_text("duplicate cluster")
        await expect(page.get_by_role("log")).to_contain_text("instance down chat-0")


async def test_it_is_used_by_keyboard_alone(browser):
    async with opened(browser) as (stage, page):
        cell = page.locator(".cell").first
        for _ in range(12):
            await page.keyboard.press("Tab")
            if await cell.evaluate("(node) => node === document.activeElement"):
                break
        assert await cell.evaluate("(node) => getComputedStyle(node).outlineStyle") == "solid"
        await page.keyboard.press("Enter")
        panel = page.get_by_role("complementary", name="chat-0")
        await expect(panel).to_contain_text("load_balanced")
        await expect(panel.get_by_role("heading", name="chat-0")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(panel).to_be_hidden()
        await expect(cell).to_be_focused()

        await page.keyboard.press("Enter")
        await panel.get_by_role("button", name="Drain…").focus()
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Drain chat-0?")
        await expect(dialog.get_by_label("Who")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        assert stage.drained == [], "nothing is ordered without the confirmation"
        await page.keyboard.press("Enter")
        await page.keyboard.type("ada")
        await page.keyboard.press("Enter")
        assert stage.drained == [], "a reason is asked for"
        await dialog.get_by_label("Why").fill("fan is loud")
        await page.keyboard.press("Enter")
        await expect(dialog).to_be_hidden()
        assert stage.drained == [("chat-0", True, "ada", "fan is loud")]


async def test_a_refused_order_is_told_where_it_was_given(browser):
    stage = LiveStage()
    stage.models = [a_model(name="other")]
    async with opened(browser, stage) as (_, page):
        await page.locator(".cell").first.click()
        await page.get_by_role("button", name="Drain…").click()
        await page.get_by_label("Who").fill("ada")
        await page.get_by_label("Why").fill("test")
        await page.get_by_role("button", name="Drain other-0").click()
        await expect(page.get_by_role("dialog")).to_contain_text("there is no instance 'other-0'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
async def test_nothing_stands_in_the_way_of_people(browser, scheme, width):
    async with opened(
        browser, in_trouble(), color_scheme=scheme, viewport={"width": width, "height": 800}
    ) as (_, page):
        await page.locator(".cell").nth(1).click()
        await expect(page.locator("#explain")).to_contain_text("load_balanced")
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        back = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == {"light": "rgb(244, 245, 247)", "dark": "rgb(16, 20, 27)"}[scheme]
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.keyboard.press("Escape")
        await page.get_by_label("Theme").select_option("dark")
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(16, 20, 27)"
        )


async def test_a_lost_control_plane_is_told_and_found_again(browser):
    async with opened(browser) as (stage, page):
        stage.is_over = True
        lost = page.get_by_role("alert").filter(has_text="No connection")
        await expect(lost).to_contain_text("What you see is from")
        stage.is_over = False
        stage.models = [a_model(120)]
        await expect(lost).to_be_hidden()
        await expect(page.get_by_role("region", name="Tier chat/primary")).to_contain_text("12.0 %")


async def test_500_proxies_and_200_instances_are_shown_those_in_trouble_first(browser):
    stage = LiveStage()
    stage.models = [a_model(name=f"chat{index}", many=39) for index in range(5)]
    stage.proxies = [a_proxy(f"edge-{index:03}") for index in range(500)]
    stage.proxies[432] = a_proxy("edge-432", SyncState.ERROR, "no")
    async with opened(browser, stage) as (_, page):
        await expect(page.locator(".cell")).to_have_count(200)
        await expect(page.locator("#proxies tbody tr").first).to_contain_text("edge-432")
        await expect(page.locator("#proxies-sum")).to_have_text("1 refused · 499 in sync")
        await page.get_by_label("Find").fill("edge-499")
        await expect(page.locator("#proxies tbody tr")).to_have_count(1)


async def test_only_so_many_look_at_once():
    import aiohttp

    async with LiveStage().serving() as stage, aiohttp.ClientSession() as session:
        streams = [await session.get(stage.url + "api/stream") for _ in range(MOST_CLIENTS)]
        for each in streams:
            await each.content.readline()
        async with session.get(stage.url + "api/stream") as one_more:
            assert one_more.status == 503
        asked = stage.asked_for_proxies
        await asyncio.sleep(1.6)
        assert stage.asked_for_proxies - asked <= 3, "they share what is read"
        for each in streams:
            each.close()


async def test_the_whole_process_shows_drains_and_forces_and_ends_with_a_page_open(
    browser, tmp_path
):
    config = ROOT / "tests/config/design.yaml"
    flags = ("--grace-s", "0")
    async with (
        running_server(config, tmp_path, flags) as server,
        a_page(browser, server.admin_url + "/") as page,
    ):
        cell = page.locator(".cell").first
        name = await cell.locator(".name").inner_text()
        await cell.click()
        await page.get_by_role("button", name="Drain…").click()
        await page.get_by_label("Who").fill("ada")
        await page.get_by_label("Why").fill("a new fan")
        await page.get_by_role("button", name=f"Drain {name}").click()
        await expect(cell.locator(".state")).to_contain_text("draining")
        await expect(page.get_by_role("log")).to_contain_text("ada: a new fan")
        await expect(page.get_by_role("button", name="Take the drain back…")).to_be_visible()

        tier = page.get_by_role("button", name="Explain tier").nth(1)
        subject = (await tier.get_attribute("aria-label")).removeprefix("Explain tier ")
        await tier.click()
        await page.get_by_role("button", name="Force this tier…").click()
        await page.get_by_label("Why").fill("the first one is wrong")
        await page.get_by_role("button", name=f"Force {subject}").click()
        region = page.get_by_role("region", name=f"Tier {subject}")
        await expect(region.locator(".tierhead .share")).to_have_text("100.0 %")
        await expect(page.get_by_role("button", name="End the force of")).to_be_visible()

        began = time.monotonic()
        assert await server.stop() == 0
        assert time.monotonic() - began < 20.0
        await expect(page.locator("#lost")).to_be_visible()
