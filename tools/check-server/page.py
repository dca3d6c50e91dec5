"""The chat page in headless Chromium, with screenshots: page.py URL FOLDER"""

import json
import sys

from playwright.sync_api import sync_playwright

url, folder = sys.argv[1:]

HOSTILE = """# Title

**bold** and `code`, [good](https://example.org) and [bad](javascript:alert(1))

<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>

- one
  - two

| a | b |
|---|---|
| 1 | <b>2</b> |

```html
<script>window.hacked = 1</script>
```
"""


def check(name, holds, found=None):
    if not holds:
        sys.exit(f"page: {name}: {found!r}")
    print("ok: page:", name)


def answers(page):
    return page.locator(".message.assistant .text")


def say(page, text):
    page.fill("#input", text)
    page.keyboard.press("Enter")


def finished(page):
    page.wait_for_selector("#send:text-is('Send')", timeout=60_000)


def conversation(page):
    page.click("#open-settings")
    page.fill("#max_tokens", "30")
    page.fill("#temperature", "0")
    page.click("#open-settings")
    say(page, "Once upon a time")
    finished(page)
    check("an answer", len(answers(page).first.inner_text()) > 20, answers(page).first.inner_text())
    check("figures", "tok/s" in page.inner_text("#figures"), page.inner_text("#figures"))
    say(page, "The bird")
    finished(page)
    check("two answers", answers(page).count() == 2)
    before = answers(page).nth(1).inner_text()
    page.click("text=Again")
    finished(page)
    check("again gives the same greedy text", answers(page).nth(1).inner_text() == before)
    page.reload()
    check("kept after a reload", answers(page).count() == 2)


def stopping(page):
    page.click("#open-settings")
    page.fill("#max_tokens", "")
    page.fill("#temperature", "1")
    page.click("#open-settings")
    for _ in range(5):
        page.click("#new")
        say(page, "A very long story:")
        page.wait_for_selector(".message.assistant .text p")
        if page.inner_text("#send") == "Stop":
            page.click("#send")
            finished(page)
            return check("stopped", "Stopped" in page.inner_text("#status"), page.inner_text("#status"))
    check("an answer that can be stopped", False)


def hostile(page):
    saved = [{"id": 1, "title": "Hostile", "messages": [
        {"role": "user", "content": "<img src=x onerror='window.hacked = 1'>"},
        {"role": "assistant", "content": HOSTILE, "reasoning": "<script>window.hacked = 1</script>"},
    ]}]
    page.evaluate("text => localStorage.setItem('fulmen.conversations', text)", json.dumps(saved))
    page.evaluate("localStorage.setItem('fulmen.current', '1')")
    page.reload()
    page.wait_for_selector(".message.assistant table")
    check("nothing was run", page.evaluate("window.hacked") is None)
    check("no image and no script", page.locator("#messages img, #messages script").count() == 0)
    links = page.locator("#messages a").evaluate_all("nodes => nodes.map(node => node.href)")
    check("links lead to the web only", links == ["https://example.org/"], links)


def shot(page, name):
    page.screenshot(path=f"{folder}/{name}.png")


with sync_playwright() as play:
    browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    problems, outside = [], []
    for name, size, dark in (("desktop", (1280, 800), False), ("phone", (390, 844), True)):
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
        page.on("request", lambda asked: outside.append(asked.url))
        page.goto(url)
        page.wait_for_selector("#model option", state="attached")
        conversation(page)
        shot(page, name)
        wide = page.evaluate("document.documentElement.scrollWidth")
        check(f"{name}: nothing is wider than the screen", wide <= size[0], wide)
        hostile(page)
        shot(page, name + "-markdown")
        page.click("#open-settings")
        if name == "phone":
            shot(page, "phone-settings")
            page.click("#open-settings")
            page.click("#open-side")
            page.wait_for_timeout(300)
            shot(page, "phone-side")
            page.click("#close-side")
            page.wait_for_timeout(300)
        else:
            page.click("#open-settings")
            stopping(page)
    browser.close()
    check("no errors", not problems, problems)
    others = [asked for asked in outside if not asked.startswith((url, "data:"))]
    check("no requests to others", not others, others)
