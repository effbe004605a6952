"""What the live page shows and offers to whom, in a real Chromium."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from tests.fakes.browser import Witness, a_browser
from tests.fakes.live_stage import LiveStage, a_model
from xds_server.admin.access import Access
from xds_server.config.admin_tokens import Role, TokenFile, digest

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

ADA, BOB = "gpuxds_ada", "gpuxds_bob"
LINES = f"ada operator {digest(ADA).hex()}\nbob viewer {digest(BOB).hex()}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    async with a_browser() as browser:
        yield browser


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(LINES)
    return path


@asynccontextmanager
async def opened(browser, access: Access):
    stage = LiveStage()
    stage.access = access
    async with stage.serving():
        context = await browser.new_context()
        try:
            page = await context.new_page()
            page.set_default_timeout(8000)
            await page.goto(stage.url)
            yield stage, page
        finally:
            await context.close()


async def log_in(page, token: str) -> None:
    dialog = page.get_by_role("dialog", name="Log in")
    await dialog.get_by_label("Token").fill(token)
    await dialog.get_by_role("button", name="Log in").click()


def guarded(file: Path, anonymous: Role | None = None) -> Access:
    return Access(tokens=TokenFile(file, gap_s=0.0), anonymous=anonymous)


async def test_nothing_is_shown_before_the_log_in_and_everything_after_it(browser, file):
    async with opened(browser, guarded(file)) as (stage, page):
        witness = Witness(page, stage.url)
        dialog = page.get_by_role("dialog", name="Log in")
        await expect(dialog).to_contain_text("a token is missing")
        await expect(dialog.get_by_label("Token")).to_be_focused()
        assert await page.locator(".cell").count() == 0
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        await log_in(page, "something else")
        await expect(dialog).to_contain_text("That is no token.")
        await log_in(page, "something-else")
        await expect(dialog).to_contain_text("nobody has this token here")
        assert witness.complaints == [], "a refusal is no error of the page"

        await log_in(page, ADA)
        await page.wait_for_selector(".cell")
        await expect(page.locator("#who")).to_have_text("ada (operator)")
        kept = await page.evaluate("[document.cookie, JSON.stringify(localStorage)]")
        assert kept[0] == ""
        assert ADA not in kept[1]
        await page.reload()
        await page.wait_for_selector(".cell")
        other = await page.context.new_page()
        await other.goto(stage.url)
        await expect(other.get_by_role("dialog", name="Log in")).to_be_visible()

        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("dialog", name="Log in")).to_be_visible()
        await expect(page.locator(".cell")).to_have_count(0)


async def test_an_operator_orders_in_the_name_of_the_token(browser, file):
    async with opened(browser, guarded(file)) as (stage, page):
        await log_in(page, ADA)
        await page.locator(".cell").first.click()
        await page.get_by_role("button", name="Drain…").click()
        who = page.get_by_label("Who")
        await expect(who).to_have_value("ada")
        await expect(who).not_to_be_editable()
        await expect(page.get_by_label("Why")).to_be_focused()
        await page.get_by_label("Why").fill("fan is loud")
        await page.get_by_role("button", name="Drain chat-0").click()
        await expect(page.get_by_role("dialog", name="Drain chat-0?")).to_be_hidden()
        assert stage.drained == [("chat-0", True, "ada", "fan is loud")]


async def test_a_viewer_is_offered_no_order_and_told_why(browser, file):
    async with opened(browser, guarded(file)) as (stage, page):
        await log_in(page, BOB)
        await page.locator(".cell").first.click()
        panel = page.get_by_role("complementary", name="chat-0")
        await expect(panel).to_contain_text("No orders from here: bob may look, not order")
        await expect(panel.get_by_role("button", name="Drain…")).to_have_count(0)
        await expect(page.locator("#who")).to_have_text("bob (viewer)")
        found = await Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert stage.drained == []


async def test_who_may_look_without_a_token_may_log_in_to_order(browser, file):
    async with opened(browser, guarded(file, Role.VIEWER)) as (_, page):
        await page.wait_for_selector(".cell")
        await expect(page.locator("#who")).to_have_text("looks only")
        await page.locator(".cell").first.click()
        await expect(page.locator("#explain")).to_contain_text("without a token you may look")
        await page.get_by_role("button", name="Log in…").click()
        await log_in(page, ADA)
        await expect(page.locator("#who")).to_have_text("ada (operator)")


async def test_where_there_are_no_tokens_orders_are_off_and_no_log_in_is_offered(browser):
    async with opened(browser, Access(anonymous=Role.VIEWER)) as (_, page):
        await page.wait_for_selector(".cell")
        await page.locator(".cell").first.click()
        await expect(page.locator("#explain")).to_contain_text(
            "No orders from here: orders are off"
        )
        await expect(page.get_by_role("button", name="Log in…")).to_have_count(0)


async def test_on_loopback_without_tokens_nothing_is_asked(browser):
    async with opened(browser, Access()) as (_, page):
        await page.wait_for_selector(".cell")
        await expect(page.locator("#who-part")).to_be_hidden()


async def test_a_token_that_is_withdrawn_grays_the_page_and_says_so(browser, file):
    async with opened(browser, guarded(file)) as (stage, page):
        await log_in(page, BOB)
        await page.wait_for_selector(".cell")
        file.write_text(LINES.splitlines()[0] + "\n")
        stage.models = [a_model(500)]
        lost = page.locator("#lost")
        await expect(lost).to_contain_text("nobody has this token here")
        await expect(lost).to_contain_text("What you see is from")
        await page.locator(".cell").first.click()
        await expect(page.locator("#explain")).to_contain_text("nobody has this token here")


async def test_an_order_that_is_refused_meanwhile_is_told_where_it_was_given(browser, file):
    async with opened(browser, guarded(file)) as (stage, page):
        await log_in(page, ADA)
        await page.locator(".cell").first.click()
        await page.get_by_role("button", name="Drain…").click()
        await page.get_by_label("Why").fill("test")
        file.write_text(LINES.replace("operator", "viewer"))
        await page.get_by_role("button", name="Drain chat-0").click()
        await expect(page.locator("#confirm-error")).to_contain_text("ada may look, not order")
        assert stage.drained == []
