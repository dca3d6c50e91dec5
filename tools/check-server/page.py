"""The chat page in headless Chromium, with screenshots: page.py URL FOLDER

The server has two models.
"""

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
FORMATTED = """~~gone~~ _soft_ snake_case_name https://example.org/a_b?c=1. [https://a.org](https://b.org)

- [ ] open
- [x] closed

| left | right |
|---|---:|
| 1 | 2 |

```
a line of code that is much longer than the screen of any phone is wide, so that it must be scrolled
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


def editing(page):
    page.locator(".message.user >> text=Edit").first.click()
    shown = page.input_value(".message textarea")
    check("edit shows the message", shown == "Once upon a time", shown)
    page.click("text=Cancel")
    check("cancel changes nothing", answers(page).count() == 2)
    page.locator(".message.user >> text=Edit").first.click()
    page.fill(".message textarea", "One day")
    page.locator(".message >> text=Send").click()
    finished(page)
    asked = page.locator(".message.user .text").all_inner_texts()
    check("an edited message is asked anew, without what followed", asked == ["One day"], asked)
    check("and answered", answers(page).count() == 1 and answers(page).first.inner_text())


def picking(page):
    names = page.locator("#model option").all_inner_texts()
    check("both models can be picked", len(names) == 2, names)
    for name in reversed(names):
        with page.expect_request("**/v1/chat/completions") as asked:
            page.select_option("#model", name)
            if page.locator("#new").is_visible():
                page.click("#new")
                check("a new conversation has no figures", page.inner_text("#figures") == "")
            say(page, "The cat")
        finished(page)
        body = json.loads(asked.value.post_data)
        check(f"{name} is asked", body["model"] == name and answers(page).count() > 0, body)
    page.select_option("#model", names[1])
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    page.wait_for_function("document.getElementById('model').options.length > 1")
    check("the choice is kept", page.input_value("#model") == names[1], page.input_value("#model"))
    page.select_option("#model", names[0])


def bound(page):
    figures = page.locator(".message.assistant .actions").last.inner_text()
    check("the share of the bound", "memory-bandwidth bound" in figures, figures)


def stopping(page):
    page.click("#open-settings")
    page.fill("#max_tokens", "")
    page.fill("#temperature", "1")
    page.click("#open-settings")
    for _ in range(20):
        page.click("#new")
        say(page, "A very long story:")
        page.wait_for_selector(".message.assistant .text p")
        if page.inner_text("#send") == "Stop":
            page.click("#send")
            finished(page)
            # The answer may have ended before the click.
            if "Stopped" in page.inner_text("#status"):
                return check("stopped", True)
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


def show(page, text):
    """A conversation with this answer."""
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": text}]
    saved = [{"id": 1, "title": "Shown", "messages": messages}]
    page.evaluate("text => localStorage.setItem('fulmen.conversations', text)", json.dumps(saved))
    page.evaluate("localStorage.setItem('fulmen.current', '1')")
    page.reload()
    page.wait_for_selector(".message.assistant")


def formatting(page):
    show(page, FORMATTED)
    text = page.locator(".message.assistant .text")
    first = text.locator("p").first
    struck, soft = (first.locator(tag).inner_text() for tag in ("del", "em"))
    check("struck and soft", (struck, soft) == ("gone", "soft"), (struck, soft))
    check("names with underscores stay", "snake_case_name" in first.inner_text(), first.inner_text())
    links = first.locator("a").evaluate_all("nodes => nodes.map(node => [node.href, node.textContent])")
    address = "https://example.org/a_b?c=1"
    check("addresses are links", links == [[address, address], ["https://b.org/", "https://a.org"]], links)
    boxes = text.locator("input[type=checkbox]").evaluate_all("nodes => nodes.map(node => node.checked)")
    check("tasks have boxes", boxes == [False, True], boxes)
    side = text.locator("td").nth(1).evaluate("node => getComputedStyle(node).textAlign")
    check("columns have their side", side == "right", side)
    button = text.locator(".code button")
    before = button.bounding_box()
    text.locator("pre").evaluate("node => { node.scrollLeft = 200 }")
    check("the button to copy does not scroll with the code", button.bounding_box() == before)


def side(page):
    """The conversations of a narrow screen lie over the others."""
    focused = lambda: page.evaluate("document.activeElement.id")
    page.click("#open-side")
    check("they have the focus", focused() == "close-side", focused())
    check("and say that they are open", page.get_attribute("#open-side", "aria-expanded") == "true")
    page.keyboard.press("Escape")
    check("Escape gives it back", focused() == "open-side", focused())
    page.click("#open-side")
    page.wait_for_timeout(300)
    page.mouse.click(380, 400)
    check("a click beside closes them", page.get_attribute("#open-side", "aria-expanded") == "false")


def two_tabs(context, page):
    """Conversations of one tab do not overwrite those of another."""
    show(page, "First")
    other = context.new_page()
    other.goto(url)
    other.wait_for_function("document.getElementById('model').options.length > 1")
    other.click("#new") if other.locator("#new").is_visible() else None
    say(other, "From the other tab")
    finished(other)
    page.wait_for_selector("#conversations li:nth-child(2)", state="attached")
    say(page, "From this tab")
    finished(page)
    page.reload()
    titles = page.locator("#conversations li button:first-child").all_text_contents()
    check("both tabs' conversations are kept", titles == ["From the other tab", "Shown"], titles)
    other.wait_for_function("document.querySelectorAll('#conversations li').length === 2")
    other.close()


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
        bound(page)
        editing(page)
        picking(page)
        wide = page.evaluate("document.documentElement.scrollWidth")
        check(f"{name}: nothing is wider than the screen", wide <= size[0], wide)
        formatting(page)
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
            side(page)
        else:
            page.click("#open-settings")
            stopping(page)
            two_tabs(context, page)
    browser.close()
    check("no errors", not problems, problems)
    others = [asked for asked in outside if not asked.startswith((url, "data:"))]
    check("no requests to others", not others, others)
