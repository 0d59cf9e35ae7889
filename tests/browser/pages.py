"""What a visitor does: open a page on a desk or on a phone, in light or dark, and have it looked over by axe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

AXE: Final = Path(__file__).parent / "axe.min.js"
SIZES: Final = {"desk": (1180, 900), "phone": (390, 844)}
Size = Literal["desk", "phone"]
Scheme = Literal["light", "dark"]
_RULES: Final = """() => axe.run({resultTypes: ["violations"]}).then(found => found.violations.map(
    each => ({id: each.id, impact: each.impact, nodes: each.nodes.map(node => node.html.slice(0, 160))})))"""


@dataclass(slots=True)
class Visitor:
    """Opens pages; whatever the browser complains about is kept in `complaints`."""

    browser: Browser
    site: str
    pictures: Path | None
    complaints: list[str] = field(default_factory=list)

    @contextmanager
    def at(self, path: str, size: Size = "desk", scheme: Scheme = "light", *, scripts: bool = True) -> Iterator[Page]:
        """A page in a browser of its own; its complaints are those since it was opened."""
        width, height = SIZES[size]
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, java_script_enabled=scripts
        )
        self.complaints.clear()
        if scripts:
            context.add_init_script(path=AXE)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: self._hear(message))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(self.site + path)
        try:
            yield page
        finally:
            context.close()

    def findings(self, page: Page) -> list[dict[str, Any]]:
        """What axe finds serious or critical."""
        found: list[dict[str, Any]] = page.evaluate(_RULES)
        return [each for each in found if each["impact"] in ("serious", "critical")]

    def picture(self, page: Page, name: str) -> None:
        """Keep a picture of what the screen shows, where pictures were asked for."""
        if self.pictures is not None:
            self.pictures.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=self.pictures / f"{name}.png")

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@contextmanager
def visitor_of(program: str, site: str, pictures: Path | None) -> Iterator[Visitor]:
    """Start the browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield Visitor(browser, site, pictures)
        browser.close()
