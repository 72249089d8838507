"""The web page in a browser.

    python3 -m unittest discover -s tests/web

It needs Debian's chromium and chromium-driver and nothing from the network. Against `stub_server.py` always; with `TAPER` (the
binary) and `TAPER_TEST_MODEL` (a model's file) against the real server as well, which `TAPER_REQUIRE_BROWSER=1` insists on.
`TAPER_SCREENSHOTS` names a folder for pictures.
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from stub_server import PAGE, Stub
from webdriver import ENTER, ESCAPE, PATIENCE, SHIFT, Browser

LAST = "#messages > li:last-child"
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


def number_in(name, constant):
    """A number that a file of the page names."""
    return int(re.search(rf"const {constant} = ([\d_]+);", (PAGE / name).read_text()).group(1))


def what_passes_stays():
    """What the page shows for a moment it shows for long, so that a slow machine finds it, too."""
    moments = [number_in("app.mjs", "TOAST_MS"), number_in("clipboard.mjs", "SHOWN_MS")]
    return f"""
        const later = window.setTimeout;
        window.setTimeout = (act, ms, ...rest) => later(act, {moments}.includes(ms) ? 1e9 : ms, ...rest);
    """


class Page(unittest.TestCase):
    """A page of its own in a browser that is started once."""

    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.browser.before_every_page(what_passes_stays())

    def open(self, url):
        """A page that knows nothing of the tests before."""
        browser = self.browser
        browser.open(url)
        browser.run("localStorage.clear(); sessionStorage.clear()")
        browser.open(url + "#chat")
        browser.reload()
        browser.log()

    def say(self, text):
        self.browser.fill("#prompt", text)
        self.browser.press(ENTER)

    def answered(self, text=""):
        """Waits for the end of an answer with a text in it."""
        self.browser.until_text(f"{LAST}.assistant .body", text)
        self.browser.until("the answer ends", lambda: self.browser.is_shown("#send"))
        return self.browser.texts(f"{LAST} .body")[0]

    def picture(self, name):
        if folder := os.environ.get("TAPER_SCREENSHOTS"):
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            self.browser.screenshot(pathlib.Path(folder, f"{name}.png"))

    def assert_nothing_was_forbidden(self):
        complaints = [line for line in self.browser.log() if "Content Security Policy" in line or "Uncaught" in line]
        self.assertEqual(complaints, [])


class WithStub(Page):
    def setUp(self):
        self.stub = Stub().start()
        self.addCleanup(self.stub.stop)
        # A browser that waits for a stream must not keep the stub's thread.
        self.addCleanup(self.stub.go_on.set)
        self.open(self.stub.url)
        self.browser.until("models are there", lambda: self.browser.texts("#model option"))

    def contents(self):
        return [(message["role"], message["content"]) for message in self.stub.requests[-1]["messages"]]

    def test_an_answer_comes_with_its_speed(self):
        self.picture("empty")
        self.say("hello")
        self.assertEqual(self.answered("to “hello”."), "Answer number 1 to “hello”.")
        request = self.stub.requests[0]
        self.assertEqual(request["model"], "stub:1m")
        self.assertEqual((request["stream"], request["stream_options"]), (True, {"include_usage": True}))
        # The stub says nothing of defaults: a chat in the terminal has these.
        self.assertEqual((request["temperature"], request["top_p"], request["top_k"], request["min_p"]), (0.8, 0.95, 40, 0.05))
        speed = self.browser.texts(f"{LAST} .speed")[0]
        self.assertRegex(speed, r"^first token after \S+ m?s · 5 tokens at 123 per second · prompt of 200 tokens, 64 cached · 3 of 4 guesses right$")
        self.assertEqual(self.browser.texts(".choose"), ["hello"])
        self.say("and again")
        self.answered("number 2")
        expected = [("user", "hello"), ("assistant", "Answer number 1 to “hello”."), ("user", "and again")]
        self.assertEqual(self.contents(), expected)
        self.assert_nothing_was_forbidden()

    def test_shift_and_enter_begin_a_new_line(self):
        self.browser.click("#prompt")
        self.browser.press("a", [SHIFT, ENTER], "b", ENTER)
        self.answered()
        self.assertEqual(self.contents(), [("user", "a\nb")])

    def test_an_answer_is_shown_while_it_comes(self):
        self.say("wait")
        self.browser.until_text(f"{LAST} .body", "first half,")
        self.assertTrue(self.browser.is_shown("#stop"))
        self.stub.go_on.set()
        self.assertEqual(self.answered("second half"), "first half, second half")

    def test_escape_stops_an_answer_and_the_server_hears_of_it(self):
        self.say("forever")
        self.browser.until_text(f"{LAST} .body", "word3")
        self.picture("writing")
        self.browser.press(ESCAPE)
        self.answered("word3")
        self.browser.until_text(f"{LAST} .speed", "stopped")
        self.assertTrue(self.stub.left.wait(PATIENCE), "the connection is closed")
        self.assertEqual([text for text in self.browser.texts(".error") if text], [])
        self.browser.reload()
        self.browser.until_text(f"{LAST} .speed", "stopped")

    def test_a_full_storage_is_still_read(self):
        self.say("hello")
        self.answered("number 1")
        self.browser.run("""
            let text = "x".repeat(2 ** 22);
            for (let place = 0; text; place++)
              try { localStorage.setItem(`filler${place}`, text); } catch { text = text.slice(text.length / 2 + 0.5); }
            for (let place = 0; place < 100; place++)
              try { localStorage.setItem("y".repeat(place + 1), ""); } catch { break; }
        """)
        self.browser.reload()
        self.browser.until_text(f"{LAST} .body", "number 1")
        self.say("more")
        self.answered("number 2")
        self.browser.until_text("#notice", "no room left")
        self.browser.reload()
        self.browser.until_text(f"{LAST} .body", "number 1")
        self.assert_nothing_was_forbidden()

    def test_an_edit_outlives_what_another_tab_writes(self):
        self.say("hello")
        self.answered("number 1")
        self.browser.click('#messages > li:first-child [data-action="edit"]')
        self.browser.fill("textarea.edit", "begun")
        self.browser.run("""
            const key = Object.keys(localStorage).find((key) => key.startsWith("taper.conversation."));
            const conversation = JSON.parse(localStorage.getItem(key));
            conversation.messages[1].content = `${">".repeat(30000)}elsewhere`;
            localStorage.setItem(key, JSON.stringify(conversation));
            window.dispatchEvent(new StorageEvent("storage", { key }));
        """)
        self.assertEqual(self.browser.run("return document.querySelector('textarea.edit').value"), "begun")
        self.assertNotIn("elsewhere", self.browser.texts(f"{LAST} .body")[0])
        self.browser.press(ESCAPE)
        # It is nested too deep to be Markdown, and shown all the same.
        self.browser.until_text(f"{LAST} pre", "elsewhere")
        self.browser.reload()
        self.browser.until_text(f"{LAST} pre", "elsewhere")
        self.assert_nothing_was_forbidden()

    def test_the_button_stops_and_another_conversation_goes_on(self):
        self.say("wait")
        self.browser.until_text(f"{LAST} .body", "first half,")
        self.browser.click("#new")
        self.assertFalse(self.browser.is_shown("#stop"))
        self.say("forever")
        self.browser.until_text(f"{LAST} .body", "word3")
        self.browser.click("#stop")
        self.answered("word3")
        self.browser.click("#conversations li:nth-child(2) .choose")
        self.browser.until_text(f"{LAST} .body", "first half,")
        self.assertTrue(self.browser.is_shown("#stop"))
        self.stub.go_on.set()
        self.assertEqual(self.answered("second half"), "first half, second half")

    def test_an_answer_is_made_again(self):
        self.say("hello")
        self.answered("number 1")
        self.browser.click(f'{LAST} [data-action="answer"]')
        self.answered("number 2")
        self.assertEqual(self.contents(), [("user", "hello")])
        self.assertEqual(len(self.browser.texts("#messages > li")), 2)

    def test_a_cut_answer_is_continued(self):
        go_on = f'{LAST} [data-action="continue"]'
        for said, reason in [("break off", ".error"), ("cut", ".speed")]:
            self.say(said)
            self.browser.until("it is cut", lambda: self.browser.texts(go_on) == ["Continue"] and self.browser.texts(f"{LAST} {reason}"))
            begun = self.answered("an ans")
            before = len(self.browser.texts("#messages > li"))
            self.picture("cut")
            self.browser.click(go_on)
            self.assertEqual(self.answered("whole."), f"{begun}wer that is whole.")
            request = self.stub.requests[-1]
            self.assertEqual(self.contents()[-1], ("assistant", begun))
            self.assertEqual((request["continue_final_message"], request["add_generation_prompt"]), (True, False))
            self.browser.until("it is cut no more", lambda: not self.browser.texts(go_on))
            self.assertEqual(len(self.browser.texts("#messages > li")), before)
            self.assertEqual([text for text in self.browser.texts(f"{LAST} .error") if text], [])
        self.browser.reload()
        self.browser.until_text(f"{LAST} .body", "an answer that is whole.")
        self.say("more")
        self.answered("to “more”.")
        self.assertEqual(self.contents()[-2:], [("assistant", "an answer that is whole."), ("user", "more")])
        self.assertNotIn("continue_final_message", self.stub.requests[-1])
        self.assert_nothing_was_forbidden()

    def test_a_message_is_edited_and_what_followed_it_goes(self):
        self.say("hello")
        self.answered("number 1")
        self.say("more")
        self.answered("number 2")
        self.browser.click('#messages > li:nth-child(1) [data-action="edit"]')
        self.browser.fill("textarea.edit", "goodbye")
        self.picture("editing")
        self.browser.press(ENTER)
        self.answered("to “goodbye”.")
        self.assertEqual(self.contents(), [("user", "goodbye")])
        self.assertEqual(len(self.browser.texts("#messages > li")), 2)

    def test_what_is_deleted_comes_back(self):
        self.say("hello")
        self.answered("number 1")
        self.say("more")
        self.answered("number 2")
        self.browser.click('#messages > li:nth-child(3) [data-action="remove"]')
        self.browser.until("two are left", lambda: len(self.browser.texts("#messages > li")) == 2)
        self.browser.click("#undo")
        self.browser.until("four are there", lambda: len(self.browser.texts("#messages > li")) == 4)
        self.browser.click("#clear")
        self.browser.until("none is left", lambda: self.browser.texts("#messages > li") == [])
        self.browser.click("#undo")
        self.browser.until("four are there", lambda: len(self.browser.texts("#messages > li")) == 4)
        self.browser.run("document.querySelector('#conversations .remove').click()")
        self.browser.until("the list is empty", lambda: self.browser.texts(".choose") == [])
        self.picture("deleted")
        self.browser.click("#undo")
        self.browser.until_text(".choose", "hello")
        self.browser.reload()
        self.browser.until_text(f"{LAST} .body", "number 2")

    def test_the_system_prompt_and_parameters_are_sent_and_kept(self):
        self.browser.click("#to-settings")
        self.browser.fill("#system", "be brief")
        self.browser.fill("#parameter-temperature", "0.25")
        self.browser.fill("#parameter-max_tokens", "77")
        self.browser.fill("#parameter-seed", "5")
        self.browser.run("const think = document.getElementById('parameter-enable_thinking'); think.value = 'off'; think.oninput()")
        self.picture("settings")
        self.browser.click("#settings-done")
        self.browser.run("const model = document.getElementById('model'); model.value = 'stub:2m'; model.onchange({ target: model })")
        for _ in range(2):
            self.say("system?")
            self.assertEqual(self.answered("system prompt"), "system prompt: ['be brief']")
            request = self.stub.requests[-1]
            sent = {name: request.get(name) for name in ["model", "temperature", "max_tokens", "seed", "top_p", "chat_template_kwargs"]}
            # What nobody set is as in `taper chat`.
            expected = {"model": "stub:2m", "temperature": 0.25, "max_tokens": 77, "seed": 5, "top_p": 0.95}
            expected["chat_template_kwargs"] = {"enable_thinking": False}
            self.assertEqual(sent, expected)
            self.assertEqual(self.browser.texts("#system-shown summary"), ["System prompt"])
            self.browser.reload()
            self.browser.until("models are there", lambda: self.browser.texts("#model option"))
        self.browser.click("#to-settings")
        self.browser.fill("#system", "")
        # `clear` tells the page of a change and not of an input.
        self.browser.type("#system", "x\ue003")
        self.browser.click("#settings-done")
        self.say("system?")
        self.answered("system prompt: []")

    def test_stop_texts_and_a_schema_are_sent(self):
        self.browser.click("#to-settings")
        self.browser.fill("#parameter-typical_p", "0.9")
        self.browser.fill("#parameter-stop", "END")
        self.browser.fill("#parameter-json_schema", '{"type": "obj')
        self.browser.until_text("#parameter-json_schema-hint", "must be a JSON object")
        self.browser.fill("#parameter-json_schema", '{"type": "object"}')
        self.browser.until_text("#parameter-json_schema-hint", "the answer is JSON of this schema")
        self.picture("forms")
        self.browser.click("#settings-done")
        self.say("hello")
        self.answered("to “hello”.")
        request = self.stub.requests[-1]
        self.assertEqual((request["typical_p"], request["stop"]), (0.9, ["END"]))
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
        self.assertEqual(request["response_format"], form)

    def test_a_parameter_out_of_bounds_is_not_sent(self):
        self.browser.click("#to-settings")
        self.browser.fill("#parameter-temperature", "hot")
        self.browser.until_text("#parameter-temperature-hint", "must be a number between 0 and 2")
        self.picture("fault")
        self.browser.click("#settings-done")
        self.say("hello")
        self.browser.until_text("#notice", "Temperature must be a number between 0 and 2, and not “hot”.")
        self.assertEqual(self.stub.requests, [])

    def test_a_reload_keeps_the_conversation(self):
        self.say("hello")
        self.answered("number 1")
        self.browser.reload()
        self.browser.until_text(f"{LAST} .body", "Answer number 1 to “hello”.")
        self.say("more")
        self.answered("number 2")
        self.assertEqual(len(self.contents()), 3)

    def test_a_reload_amid_an_answer_keeps_what_there_was(self):
        self.say("wait")
        self.browser.until_text(f"{LAST} .body", "first half,")
        self.browser.reload()
        self.browser.until_text(f"{LAST} .body", "first half,")
        self.browser.until_text(f"{LAST} .speed", "stopped")

    def test_conversations_go_out_and_come_in_as_a_file(self):
        self.say("hello")
        self.answered("number 1")
        self.browser.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.browser.downloads))
        self.browser.click("#export")
        found = lambda: [path for path in self.browser.downloads.glob("*.json") if path.stat().st_size > 0]
        [path] = self.browser.until("the file is there", found)
        self.assertRegex(path.name, r"^taper-conversations-\d{4}-\d\d-\d\d\.json$")
        file = json.loads(path.read_text())
        self.assertEqual(file["conversations"][0]["messages"][0]["content"], "hello")
        file["conversations"][0]["messages"][0]["content"] = "hello from a file"
        path.write_text(json.dumps(file))
        self.browser.run("document.getElementById('file').hidden = false")
        self.browser.type("#file", str(path))
        self.browser.until("two are there", lambda: sorted(self.browser.texts(".choose")) == ["hello", "hello from a file"])
        path.write_text('{"format": "other"}')
        self.browser.type("#file", str(path))
        self.browser.until_text("#notice", "The file holds no conversations")
        path.unlink()

    def test_markdown_is_shown_as_what_it_means(self):
        self.say("markdown")
        self.answered("And so on.")
        count = lambda css: len(self.browser.texts(f"{LAST} .body {css}"))
        counts = {css: count(css) for css in ["h1", "ol > li", "ul > li", "strong", "em", "table td", "blockquote", ".code pre"]}
        expected = {"h1": 1, "ol > li": 2, "ul > li": 2, "strong": 1, "em": 1, "table td": 2, "blockquote": 1, ".code pre": 1}
        self.assertEqual(counts, expected)
        self.assertEqual(self.browser.texts(f"{LAST} .code-head"), ["rust\nCopy"])
        link = self.browser.run("const { href, target, rel } = document.querySelector('#messages .body a'); return { href, target, rel }")
        self.assertEqual(link["href"], "https://example.org/there")
        self.assertEqual((link["target"], link["rel"]), ("_blank", "noopener noreferrer nofollow"))
        self.picture("markdown")
        self.browser.cdp("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        self.browser.click(f"{LAST} .code-head .copy")
        self.browser.until_text(f"{LAST} .code-head .copy", "Copied")
        self.assert_nothing_was_forbidden()

    def test_an_answer_with_markup_is_harmless(self):
        self.say("hostile")
        shown = self.answered("the end")
        self.picture("hostile")
        self.assertIn('<script>window.hurt = "script"</script>', shown)
        self.browser.run("document.querySelectorAll('#messages .body *').forEach((element) => element.click())")
        self.assertIsNone(self.browser.run("return window.hurt ?? null"))
        forbidden = "script, img, iframe, style, form, input, svg, object, [onclick], [onerror], [style], [onmouseover]"
        self.assertEqual(self.browser.run("return document.querySelectorAll('#messages .body :is(' + arguments[0] + ')').length", forbidden), 0)
        links = self.browser.run("return [...document.querySelectorAll('#messages .body a')].map((link) => link.getAttribute('href'))")
        self.assertEqual([link for link in links if link], ["http://127.0.0.1:1/spy.png"])
        self.assert_nothing_was_forbidden()

    def test_a_refusal_is_shown_and_tried_again(self):
        self.say("refuse")
        self.browser.until_text(f"{LAST} .error", "the queue is full; ask again after the time in Retry-After (It asks to wait for 3 s.)")
        self.picture("error")
        self.assertEqual(self.browser.texts(f'{LAST} [data-action="answer"]'), ["Retry"])
        self.browser.click(f'{LAST} [data-action="answer"]')
        self.browser.until("it is asked again", lambda: len(self.stub.requests) == 2)
        self.browser.until_text(f"{LAST} .error", "the queue is full")
        self.assertEqual(self.contents(), [("user", "refuse")])

    def test_an_answer_that_breaks_keeps_what_there_was(self):
        for said, reason in [("fail midway", "the request had its time"), ("break off", "The connection ended before")]:
            self.say(said)
            self.browser.until_text(f"{LAST} .error", reason)
            self.assertEqual(self.browser.texts(f"{LAST} .body"), ["half an ans"])
        self.assertEqual(self.contents()[-2:], [("assistant", "half an ans"), ("user", "break off")])

    def test_a_server_that_is_gone_is_said_to_be(self):
        self.stub.stop()
        self.say("hello")
        self.browser.until_text(f"{LAST} .error", "The server cannot be reached.")

    def test_reasoning_is_folded_and_not_sent_back(self):
        self.say("think")
        self.answered("It is so.")
        reasoning = f"{LAST} .reasoning"
        self.assertFalse(self.browser.run("return document.querySelector(arguments[0]).open", reasoning))
        self.browser.click(f"{reasoning} summary")
        self.browser.until_text(f"{reasoning}-text", "Let me see. Yes.")
        self.picture("reasoning")
        self.say("more")
        self.answered("number 2")
        self.assertEqual(self.contents()[1], ("assistant", "It is so."))

    def test_a_key_is_asked_for_and_sent(self):
        self.stub.key = "sesame"
        self.browser.reload()
        self.browser.until_text("#state", "this server wants an API key The API key is in the settings.")
        self.browser.click("#to-settings")
        self.browser.fill("#key", "sesame")
        self.browser.click("#settings-done")
        self.browser.until("models are there", lambda: self.browser.texts("#model option"))
        self.say("hello")
        self.answered("number 1")
        self.assertEqual(self.stub.authorizations[-1], "Bearer sesame")
        kept = self.browser.run("return [JSON.stringify({ ...localStorage }), JSON.stringify({ ...sessionStorage })]")
        self.assertEqual(["sesame" in text for text in kept], [False, True])

    def test_a_model_that_loads_is_waited_for(self):
        self.stub.is_loading = True
        self.browser.reload()
        self.browser.until_text("#state", "the model is loading: reading the file")
        self.stub.is_loading = False
        self.browser.until("models are there", lambda: self.browser.texts("#model option"))
        self.assertEqual(self.browser.texts("#state"), [""])

    def test_the_live_view_draws_and_an_answer_goes_on_behind_it(self):
        self.say("wait")
        self.browser.until_text(f"{LAST} .body", "first half,")
        self.browser.click("#to-live")
        self.browser.until("charts are drawn", lambda: len(self.browser.texts("#charts canvas")) == 8)
        self.browser.until("the tiles have numbers", lambda: "–" not in self.browser.texts("#tiles dd"))
        numbers = dict(zip(self.browser.texts("#tiles dt"), self.browser.texts("#tiles dd")))
        self.assertRegex(numbers["KV cache in use"], r"^\d+ %$")
        self.assertRegex(numbers["first token, p95"], r"^\d+ ms$")
        is_drawn = """return [...document.querySelectorAll('#charts canvas')].every((canvas) => {
            const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return pixels.some((value) => value !== 0);
        })"""
        self.browser.until("every chart has lines", lambda: self.browser.run(is_drawn))
        if os.environ.get("TAPER_SCREENSHOTS"):
            self.browser.until("some time is drawn", lambda: self.browser.run("return performance.now() > 9000"))
            self.picture("live")
        self.browser.until("nothing is wrong", lambda: not self.browser.is_shown("#live-notice"))
        self.assert_nothing_was_forbidden()
        self.stub.go_on.set()
        self.browser.click("#to-chat")
        self.assertEqual(self.answered("second half"), "first half, second half")

    def test_the_live_view_shows_one_model_or_all(self):
        self.browser.click("#to-live")
        self.browser.until("the tiles have numbers", lambda: "–" not in self.browser.texts("#tiles dd"))
        self.assertFalse(self.browser.is_shown("#live-of"), "there is one model")
        self.stub.has_two_models = True
        self.browser.until("there is a choice", lambda: self.browser.is_shown("#live-of"))
        self.assertEqual(self.browser.texts("#live-model option"), ["all of them", 'stub:"1m"', "stub:2m"])
        self.browser.run("const choice = document.getElementById('live-model'); choice.value = 'stub:2m'; choice.onchange({ target: choice })")
        self.browser.until("the tiles have numbers", lambda: "–" not in self.browser.texts("#tiles dd"))
        self.browser.until("charts are drawn", lambda: len(self.browser.texts("#charts canvas")) == 8)
        self.assert_nothing_was_forbidden()

    def test_metrics_that_cannot_be_read_are_said_to_be(self):
        self.stub.has_metrics = False
        self.browser.click("#to-live")
        self.browser.until_text("#live-notice", "The metrics cannot be read: there is nothing at /metrics")
        self.stub.has_metrics = True
        self.browser.until("the tiles have numbers", lambda: "–" not in self.browser.texts("#tiles dd"))
        self.browser.until("nothing is wrong", lambda: not self.browser.is_shown("#live-notice"))

    def test_nothing_is_wider_than_a_phone(self):
        browser = self.browser
        self.say("markdown")
        self.answered("And so on.")
        with self.emulated():
            fits = "return document.scrollingElement.scrollWidth <= innerWidth && document.querySelector('#log').scrollWidth <= innerWidth"
            browser.until("the list is away", lambda: not browser.is_shown("#new"))
            self.picture("phone")
            browser.until("nothing is wider", lambda: browser.run(fits))
            browser.click("#menu")
            browser.until("the list is there", lambda: browser.is_shown("#new"))
            self.picture("phone-menu")
            browser.press(ESCAPE)
            browser.click("#to-live")
            browser.until("charts are drawn", lambda: len(browser.texts("#charts canvas")) == 8)
            browser.until("nothing is wider", lambda: browser.run(fits))
            self.picture("phone-live")
            browser.click("#to-settings")
            self.picture("phone-settings")
            browser.click("#settings-done")

    @contextlib.contextmanager
    def emulated(self):
        """A phone that is set to dark colours and little motion."""
        self.browser.cdp("Emulation.setDeviceMetricsOverride", **PHONE)
        features = {"prefers-color-scheme": "dark", "prefers-reduced-motion": "reduce"}
        self.browser.cdp("Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in features.items()])
        try:
            yield
        finally:
            self.browser.cdp("Emulation.clearDeviceMetricsOverride")
            self.browser.cdp("Emulation.setEmulatedMedia", features=[])

    def test_every_control_has_a_name(self):
        self.say("markdown")
        self.answered("And so on.")
        nameless = self.browser.run(
            """const name = (element) => element.getAttribute('aria-label') || element.innerText.trim() || element.labels?.[0]?.innerText
                   || element.title || element.placeholder;
               return [...document.querySelectorAll('button, input, select, textarea, a, summary')].filter((element) => !name(element))
                   .map((element) => element.outerHTML);"""
        )
        # What is not shown has no inner text; the label of a field in the closed dialog is one of those.
        self.assertEqual([element for element in nameless if "parameter-" not in element], [])


class WithModel(Page):
    @classmethod
    def setUpClass(cls):
        if missing := [name for name in ("TAPER", "TAPER_TEST_MODEL") if not os.environ.get(name)]:
            reason = f"{' and '.join(missing)} must be set: the binary, and a model's file"
            raise RuntimeError(reason) if os.environ.get("TAPER_REQUIRE_BROWSER") == "1" else unittest.SkipTest(reason)
        super().setUpClass()
        command = [os.environ["TAPER"], "serve", "--port", "0", "--model", os.environ["TAPER_TEST_MODEL"]]
        cls.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.end)
        for line in cls.server.stderr:
            if found := re.search(r"listening on (http://\S+?),", line):
                cls.url = found.group(1) + "/"
                break
        else:
            raise RuntimeError("the server did not start")
        # Its log must not fill the pipe.
        threading.Thread(target=cls.server.stderr.read, daemon=True).start()

    @classmethod
    def end(cls):
        cls.server.kill()
        cls.server.wait()

    def setUp(self):
        self.open(self.url)
        self.browser.until("models are there", lambda: self.browser.texts("#model option"))

    def test_a_model_answers_and_is_stopped(self):
        browser = self.browser
        browser.click("#to-settings")
        browser.fill("#parameter-temperature", "0")
        browser.fill("#parameter-max_tokens", "12")
        browser.click("#settings-done")
        self.say("Name three colours.")
        self.answered()
        browser.until_text(f"{LAST} .speed", "12 tokens at ")
        self.assertIn("cut at the limit of tokens", browser.texts(f"{LAST} .speed")[0])
        browser.click("#to-settings")
        browser.fill("#parameter-max_tokens", "7000")
        browser.click("#settings-done")
        # A small model soon has nothing more to say, and must still be speaking when it is stopped.
        browser.run("""
            const ask = window.fetch;
            const longer = (init) => ({ ...init, body: JSON.stringify({ ...JSON.parse(init.body), ignore_eos: true }) });
            window.fetch = (url, init) => ask(url, init?.body ? longer(init) : init);
        """)
        self.say("Count from one to a thousand, and explain each number at length.")
        browser.until("words come", lambda: len(browser.texts(f"{LAST} .body")[0]) > 20)
        browser.press(ESCAPE)
        self.answered()
        browser.until_text(f"{LAST} .speed", "stopped")
        browser.click("#to-live")
        running = lambda: dict(zip(browser.texts("#tiles dt"), browser.texts("#tiles dd"))).get("running")
        browser.until("the server works for nobody", lambda: running() == "0")
        self.picture("model-live")
        self.assert_nothing_was_forbidden()

    def test_a_refusal_names_what_is_wrong(self):
        paste = """const field = document.getElementById('prompt');
            field.value = 'word '.repeat(20_000);
            field.dispatchEvent(new Event('input'));"""
        self.browser.run(paste)
        self.browser.click("#send")
        self.browser.until_text(f"{LAST} .error", "the context of this model holds")


# The base has no tests of its own.
del Page

if __name__ == "__main__":
    unittest.main()
