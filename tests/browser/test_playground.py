"""The playground trains what the package trains: its messages are read by the package and the
other way round, its curves are the package's, and a reader can use it by key, on a telephone, in
the dark, in grey, and where a viewer allows no worker."""

import base64
import re

import numpy as np
import pytest
from conftest import HTML
from test_reading import see

import fedlearn as fl
from fedlearn.book.play import HERE, playground

UPS = ("whole", "bits", "signs", "largest", "memory", "stc")
# The attribute says that the address is the page's own, as in the book.
PAGE = """<!doctype html><html lang="en" data-content_root="./">
<meta charset="utf-8"><title>A page</title><style>{css}</style><main id="here"></main></html>"""
# What anywidget does: the module from a blob, a model with get and set.
LOAD = """async ([source, state, digits]) => {
  const raw = Uint8Array.from(atob(digits), c => c.charCodeAt(0));
  const its = {...state, digits: new DataView(raw.buffer)}, about = state.about;
  window.M = await import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})));
  window.F = M.federation();
  window.data = F.open(raw, about.count, about.train, about.mean, about.std);
  window.model = {get: k => its[k], set: (k, v) => { its[k] = v; }, save_changes() {}, on() {},
    off() {}};
  window.settings = changes => ({...M.parse('').s, split: 'iid', rounds: 20, ...changes}); }"""
# A federation that keeps its messages, as hexadecimal numbers.
TRAIN = """([changes, keep]) => {
  const s = settings(changes), fed = F.make(data, s), rows = [], messages = [];
  const hex = bytes => [...bytes].map(b => b.toString(16).padStart(2, '0')).join('');
  for (let t = 1; t <= s.rounds; t++) {
    const {row, messages: its} = fed.round(0, t <= keep);
    rows.push(row);
    if (t <= keep) messages.push(its.map(m => ({client: m.client, up: hex(m.up), down: hex(m.down),
      lengths: [m.down.byteLength, m.up.byteLength], sent: m.sent.map(x => [...x])}))); }
  return {rows, messages, owned: fed.owned.map(o => [...o]),
    code: M.in_python(s, fed.links, fed.liars)}; }"""
READ = """([up, ratio, messages]) => messages.map(([k, hex]) => {
  const link = F.link_of(up, ratio);
  const bytes = Uint8Array.from(hex.match(/../g), b => parseInt(b, 16));
  return F.unpack(bytes, 1, F.digest(link.name), 1, k).sections.map((section, i) => {
    return [...link.coders[i].decode(section, F.SIZES[i])]; }); })"""


def load(page, address):
    """The module in an open page."""
    page.goto(address)
    widget = playground()
    state = {"scene": "", "about": widget.about, "links": widget.links}
    digits = base64.b64encode(widget.digits).decode()
    page.evaluate(LOAD, [(HERE / "play.js").read_text(), state, digits])


@pytest.fixture
def play(page, tmp_path):
    """Opens a page from disk with the module and, if there is a ``scene``, the widget in it."""

    def opened(scene=None):
        file = tmp_path / "page.html"
        file.write_text(PAGE.format(css=(HERE / "play.css").read_text()))
        page.goto("about:blank")
        load(page, f"{file.as_uri()}#{scene or ''}")
        if scene is not None:
            page.evaluate("void M.default.render({model, el: here})")
            page.wait_for_selector(".fl-person")
        return page

    return opened


def in_package(outcome):
    """What the page writes as Python, with its own split -> method and task."""
    code = re.sub(r'clients=\d+, partition="[^"]*"', "clients=owned", outcome["code"])
    names = {"owned": outcome["owned"]}
    exec(code[: code.index("history =")], names)
    return names["method"], names["task"]


@pytest.mark.parametrize("down", ["dense", "same"])
@pytest.mark.parametrize("up", UPS)
def test_messages_are_read_on_the_other_side(play, up, down):
    page, ratio = play(), 0.03
    changes = {
        "clients": 4,
        "up": up,
        "down": down,
        "ratio": ratio,
        "rounds": 3,
        "seed": 3,
    }
    outcome = page.evaluate(TRAIN, [changes, 1])
    method, task = in_package(outcome)
    server, people = method.server_side(task), fl.clients(method, task)
    state, answers = server.start(), []
    for m in outcome["messages"][0]:
        k, data = m["client"], bytes.fromhex(m["up"])
        assert m["lengths"] == [len(m["down"]) // 2, len(data)]
        message, _ = server.send(1, k, state)
        assert message.hex() == m["down"]
        got = server.receive(
            1, k, data, state
        ).update  # made in the page, read by the package
        for name, sent in zip(server.up.shapes, m["sent"], strict=True):
            assert np.array_equal(
                got[name].flatten().numpy(), np.array(sent, np.float32)
            ), name
        answers.append((k, people.answer(1, k, message)))
    link = "votes" if up == "signs" else up
    read = page.evaluate(READ, [link, ratio, [(k, a.hex()) for k, a in answers]])
    for (k, answer), tensors in zip(answers, read, strict=True):
        update = server.receive(
            1, k, answer, state
        ).update  # made by the package, read in the page
        for name, got in zip(server.up.shapes, tensors, strict=True):
            assert np.array_equal(
                np.array(got, np.float32), update[name].flatten().numpy()
            ), name
    history = fl.run(method, task, 3, progress=False)
    assert [row["down"] for row in outcome["rows"]] == history.bytes_down.tolist()
    ups = [row["up"] for row in outcome["rows"]]
    # training differs by rounding, and so may a gap between two positions
    assert ups == pytest.approx(history.bytes_up.tolist(), abs=4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"up": "stc", "down": "same", "split": "dirichlet:0.1"},
        {"up": "signs", "clients": 12, "share": 0.5, "down": "same"},
        {"liars": 1},
    ],
)
def test_it_ends_where_the_package_ends(play, changes):
    page, ends = play(), []
    for seed in range(2):
        outcome = page.evaluate(TRAIN, [{**changes, "seed": seed}, 0])
        method, task = in_package(outcome)
        share = changes.get("share", 1.0)
        history = fl.run(
            method, task, 20, participation=share, engine="sequential", progress=False
        )
        ends.append((outcome["rows"][-1]["accuracy"], history.final["accuracy"]))
        if changes == {}:  # nothing is cut off, so that rounding stays what it is
            page_rows = [row["accuracy"] for row in outcome["rows"]]
            assert page_rows == pytest.approx(history.accuracy.tolist(), abs=0.01)
    here, expected = np.array(ends).T
    assert expected.min() - 0.05 <= here.mean() <= expected.max() + 0.05


def ended(page):
    page.wait_for_selector(".fl-then:not([hidden])")
    return page.locator(".fl-status").inner_text()


def fast(page):
    page.locator("details.fl-more").first.evaluate("d => { d.open = true; }")
    page.select_option("[name=pace]", "0")
    page.select_option("[name=rounds]", "20")


def test_a_scene_is_played_by_key_and_compared(play):
    page = play("one-in-a-hundred")
    fast(page)
    assert page.locator(".fl-guessed").count() == 0, "nobody has guessed yet"
    page.focus("[name=guess]")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".fl-guess-said").text_content() == "your guess: 79"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "▶ Play"
    page.keyboard.press("Enter")
    first = re.fullmatch(
        r"You guessed 79\. After 20 rounds it reads (\d+) of 100\.", ended(page)
    )
    page.focus(".fl-change")
    page.keyboard.press("Enter")  # the same with memory, beside the old curve
    page.wait_for_selector(".fl-then[hidden]", state="attached")
    assert page.evaluate("document.activeElement.className") == "fl-go", (
        "the key's button is gone"
    )
    assert "It trains" in page.locator(".fl-status").inner_text()
    scores = re.search(r"reads (\d+) of 100; the curve you kept, (\d+)", ended(page))
    assert scores[2] == first[1] and int(scores[1]) > int(scores[2])
    looks = "all => all.map(x => x.getAttribute('stroke-dasharray'))"
    marks = "all => all.map(x => x.getAttribute('d'))"
    assert len(set(page.locator(".fl-chart .fl-line").evaluate_all(looks))) == 2
    assert len(set(page.locator(".fl-chart path[fill]").evaluate_all(marks))) == 2
    legend = page.locator(".fl-legend li").all_inner_texts()
    assert "with memory" in legend[0] and "largest numbers" in legend[1]
    for key in ("bytes", "time"):
        page.locator(f".fl-tabs input[value={key}]").check()
        page.wait_for_function(
            "k => document.querySelector('.fl-chart').ariaLabel.includes(k)", arg=key
        )
    # what is sent is a hundredth; what is kept is nearly all
    sent, memory = page.locator(".fl-rows div > span").all_inner_texts()[1:]
    assert sent.startswith("it sent: 21 of 2,048") and memory.startswith(
        "it keeps for later: 2,0"
    )
    page.focus("[name=focus]")
    page.keyboard.press("ArrowDown")
    page.wait_for_function(
        "document.querySelectorAll('.fl-person')[1].matches('.fl-focus')"
    )
    page.click(".fl-keep")
    assert "The curve is kept" in page.locator(".fl-story").inner_text()
    page.select_option("[name=up]", "bits")
    assert "Changed: what they send" in page.locator(".fl-story").inner_text()


def test_the_address_is_the_federation(play):
    page = play("a-liar&clients=5")
    assert page.locator("[name=clients]").input_value() == "5"
    page.select_option("[name=up]", "signs")
    assert page.url.endswith("#a-liar&clients=5&up=signs")
    assert (
        "your own" in page.locator(".fl-story").inner_text()
    )  # no word of the scene's
    page = play(page.url.partition("#")[2])
    assert page.locator("[name=up]").input_value() == "signs"
    assert "Majority(0.01)" in page.locator("pre").text_content()
    page.evaluate("location.hash = 'ask-a-tenth'")
    page.wait_for_selector("[data-scene=ask-a-tenth][aria-pressed=true]")


def test_without_a_worker_it_trains_in_the_page_and_says_so(play):
    page = play("signs-vote")
    assert "in a worker" in page.locator(".fl-foot").inner_text()
    page.evaluate("window.Worker = undefined; void M.default.render({model, el: here})")
    page.wait_for_selector(".fl-person")
    page.wait_for_function(
        "document.querySelector('.fl-foot').textContent.includes('no worker')"
    )
    fast(page)
    page.click(".fl-go")
    assert ended(page).startswith("After 20 rounds"), "nobody has guessed"


def test_in_the_book_it_trains_from_disk_and_reads_well(page):
    page.goto(f"{HTML.as_uri()}/start/playground.html#a-liar")
    page.wait_for_selector(".fl-play .fl-person")
    fast(page)
    page.click(".fl-go")
    assert "After 20 rounds" in ended(page)
    assert see(page, "start/playground") == {}
