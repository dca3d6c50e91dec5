"""The chat page in headless Chromium, with answers that arrive as a test wants: page_stream.py URL

`fetch` of chat completions is replaced in the page, so nothing here depends on how fast a model is.
"""

import json
import sys

from playwright.sync_api import sync_playwright

url = sys.argv[1]

ANSWERS = """
window.asked = [];
const real = window.fetch;
const bytes = (text) => new TextEncoder().encode(text);
window.fetch = (address, options) => {
  if (!String(address).endsWith("chat/completions")) return real(address, options);
  const ask = { body: JSON.parse(options.body), aborted: false };
  const body = new ReadableStream({ start: (controller) => { ask.controller = controller; } });
  options.signal.addEventListener("abort", () => {
    ask.aborted = true;
    ask.controller.error(new DOMException("stopped", "AbortError"));
  });
  window.asked.push(ask);
  return Promise.resolve(new Response(body, { headers: { "content-type": "text/event-stream" } }));
};
window.push = (at, content, reason = null) => {
  const chunk = { choices: [{ index: 0, delta: { content }, finish_reason: reason }] };
  asked[at].controller.enqueue(bytes("data: " + JSON.stringify(chunk) + "\\n\\n"));
};
window.done = (at, complete = true) => {
  if (complete) asked[at].controller.enqueue(bytes("data: [DONE]\\n\\n"));
  asked[at].controller.close();
};
"""


def check(name, holds, found=None):
    if not holds:
        sys.exit(f"page: {name}: {found!r}")
    print("ok: page:", name)


def say(page, text):
    page.fill("#input", text)
    page.keyboard.press("Enter")


def asked(page, count):
    page.wait_for_function(f"asked.length === {count}")


def push(page, at, text, reason=None):
    """Sends a piece of an answer and waits until it is shown."""
    page.evaluate("([at, text, reason]) => push(at, text, reason)", [at, text, reason])
    page.wait_for_function("text => document.getElementById('messages').innerText.includes(text)", arg=text)


def done(page, at, complete=True):
    page.evaluate("([at, complete]) => done(at, complete)", [at, complete])
    finished(page)


def finished(page):
    page.wait_for_selector("#send:text-is('Send')")


def texts(page, role):
    return page.locator(f".message.{role} .text").all_inner_texts()


def streaming(page):
    say(page, "One")
    asked(page, 1)
    push(page, 0, "Hello")
    check("an answer that is written cannot be asked again", page.locator("text=Again").count() == 0)
    busy = page.get_attribute("#messages", "aria-busy")
    check("readers wait for its end", busy == "true", busy)
    page.locator(".message.assistant >> text=Copy").focus()
    push(page, 0, " there,\n\nbird")
    focused = page.evaluate("document.activeElement.textContent")
    check("the focus stays while it is written", focused == "Copy", focused)
    page.locator(".message.user >> text=Edit").click()
    page.fill(".message textarea", "One and a half")
    done(page, 0)
    shown = page.locator(".message textarea")
    check("an open editor outlives the end", shown.count() == 1 and shown.input_value() == "One and a half")
    focused = page.evaluate("document.activeElement.tagName")
    check("with its focus", focused == "TEXTAREA", focused)
    page.click("text=Cancel")
    check("cancel brings the message back", texts(page, "user") == ["One"], texts(page, "user"))
    busy = page.get_attribute("#messages", "aria-busy")
    check("readers read the answer", busy == "false", busy)


def ends(page):
    page.click("text=Again")
    asked(page, 2)
    push(page, 1, "Cut", "length")
    done(page, 1)
    shown = texts(page, "assistant")
    check("an answer that was cut off says so", "largest number of tokens" in shown[-1], shown)
    page.click("text=Again")
    asked(page, 3)
    push(page, 2, "Broken")
    done(page, 2, complete=False)
    shown = texts(page, "assistant")
    check("a lost connection is no complete answer", "connection ended" in shown[-1], shown)
    page.click("text=Again")
    asked(page, 4)
    push(page, 3, "Whole", "stop")
    done(page, 3)
    check("a whole answer says nothing", texts(page, "assistant") == ["Whole"], texts(page, "assistant"))


def one_at_a_time(page):
    say(page, "Two")
    asked(page, 5)
    push(page, 4, "First")
    page.locator(".message.user >> text=Edit").first.click()
    page.fill(".message textarea", "Three")
    page.locator(".message >> text=Send").click()
    asked(page, 6)
    check("an edited message stops the answer", page.evaluate("asked[4].aborted"))
    push(page, 5, "Second")
    check("only the new answer is written", texts(page, "assistant") == ["Second"], texts(page, "assistant"))
    page.keyboard.press("Escape")
    finished(page)
    check("Escape stops", page.evaluate("asked[5].aborted") and page.inner_text("#status") == "Stopped.")
    check("the rest stays", texts(page, "assistant") == ["Second"], texts(page, "assistant"))


def leaving(page):
    say(page, "Four")
    asked(page, 7)
    push(page, 6, "Half an ans")
    page.reload()
    check("a reload keeps what was asked", texts(page, "user") == ["Three", "Four"], texts(page, "user"))
    shown = texts(page, "assistant")
    check("and says what is not complete", "Half an ans" in shown[-1] and "page was left" in shown[-1], shown)
    page.click("text=Again")
    asked(page, 1)
    sent = [message["content"] for message in page.evaluate("asked[0].body.messages")]
    check("it can be asked again", sent == ["Three", "Second", "Four"], sent)
    push(page, 0, "Whole again")
    done(page, 0)


def conversations(page):
    page.click("#new")
    say(page, "Another")
    asked(page, 2)
    push(page, 1, "Not yet")
    titles = page.locator("#conversations li button:first-child").all_inner_texts()
    check("two conversations", titles == ["Another", "One"], titles)
    page.click("#conversations >> text=One")
    check("another conversation stops the answer", page.evaluate("asked[1].aborted"))
    finished(page)
    check("it is shown", texts(page, "user") == ["Three", "Four"], texts(page, "user"))
    page.click("#conversations >> text=Another")
    check("what was written is kept", texts(page, "assistant") == ["Not yet"], texts(page, "assistant"))
    page.click("[aria-label='Delete One']")
    check("one that is not shown can be deleted", texts(page, "user") == ["Another"], texts(page, "user"))
    page.click("text=Again")
    asked(page, 3)
    page.click("[aria-label='Delete Another']")
    finished(page)
    left = page.locator("#conversations li").count() + page.locator(".message").count()
    check("one that is answered can be deleted", page.evaluate("asked[2].aborted") and left == 0, left)
    page.reload()
    left = page.locator("#conversations li").count()
    check("it does not come back", left == 0, left)


def keyboard(page):
    page.focus("#input")
    page.keyboard.type("a")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("b")
    check("Shift+Enter breaks the line", page.input_value("#input") == "a\nb", page.input_value("#input"))
    page.keyboard.press("Enter")
    asked(page, 1)
    sent = page.evaluate("asked[0].body.messages[0].content")
    check("Enter sends", sent == "a\nb", sent)
    push(page, 0, "A little bird")
    done(page, 0)
    page.locator(".message.assistant >> text=Copy").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.assistant >> text=Copied")
    page.focus("#input")
    page.keyboard.press("Control+V")
    pasted = page.input_value("#input")
    check("copying works without the clipboard's interface", pasted == "A little bird", pasted)


def theme(page):
    look = lambda: page.evaluate("document.documentElement.dataset.theme")
    before = look()
    page.click("#theme")
    check("the theme is switched", {before, look()} == {"light", "dark"}, look())
    kept = look()
    page.reload()
    check("the theme is kept", look() == kept, look())


def refused(browser):
    page = browser.new_page()
    error = {"error": {"message": "no API key: send it as a header", "code": "invalid_api_key"}}
    answer = {"status": 401, "content_type": "application/json", "body": json.dumps(error)}
    page.route("**/v1/models", lambda route: route.fulfill(**answer))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**answer))
    page.goto(url)
    page.wait_for_selector("#key:visible")
    check("a missing key opens the settings", "no API key" in page.inner_text("#status"))
    page.click("#open-settings")
    say(page, "Hello")
    page.wait_for_selector(".message .error")
    check("its error is shown", "no API key" in texts(page, "assistant")[0], texts(page, "assistant"))
    page.wait_for_selector("#key:visible")
    with page.expect_request(lambda asked: asked.url.endswith("/v1/models")) as models:
        page.fill("#key", "secret")
        page.keyboard.press("Tab")
    sent = models.value.headers.get("authorization")
    check("the key is sent", sent == "Bearer secret", sent)


with sync_playwright() as play:
    browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    page = browser.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_default_timeout(20_000)
    page.add_init_script(ANSWERS)
    # As on plain HTTP from another machine.
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.goto(url)
    page.wait_for_selector("#model option", state="attached")
    for cases in (streaming, ends, one_at_a_time, leaving, conversations, keyboard, theme):
        cases(page)
    refused(browser)
    browser.close()
    check("no errors", not problems, problems)
