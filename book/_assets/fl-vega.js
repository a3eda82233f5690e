// Draws the charts that fl.book.chart puts into a page (a spec beside each `.fl-vega`), with no kernel and no network,
// and tells screen readers what sliders say. Loaded on every page; fetches Vega only where there is a chart. Where Vega does
// not come, also when it is fetched once more, the stills stay.
(function () {
  var root = document.documentElement.dataset.content_root || "./";
  var base = new URL(root + "_static/vendor/vega/", document.baseURI).href;
  var files = { "vega": "vega.min", "vega-lite": "vega-lite.min", "vega-embed": "vega-embed.min" };

  function fetched() {                      // a promise of vegaEmbed
    if (window.requirejs) {                 // pages with widgets: the bundles register as AMD modules there
      var paths = {};
      Object.keys(files).forEach(function (name) { paths[name] = base + files[name]; });
      requirejs.config({ paths: paths, waitSeconds: 30 });
      return new Promise(function (resolve, reject) {
        requirejs(["vega-embed"], resolve, function (error) {
          Object.keys(files).forEach(requirejs.undef);   // so that it may be asked for again
          reject(error);
        });
      });
    }
    return Object.keys(files).reduce(function (before, name) {
      return before.then(function () {
        return new Promise(function (resolve, reject) {
          var script = document.createElement("script");
          script.src = base + files[name] + ".js";
          script.onload = resolve; script.onerror = reject;
          document.head.appendChild(script);
        });
      });
    }, Promise.resolve()).then(function () { return window.vegaEmbed; });
  }

  function speak(box, spec, view) {         // names and values of sliders, as they are shown
    var meta = spec.usermeta || {}, units = meta.units || {}, says = meta.says || {};
    box.querySelectorAll(".vega-bind").forEach(function (bind) {
      var range = bind.querySelector("input[type=range]"), name = bind.querySelector(".vega-bind-name");
      if (!range || !name) return;
      var unit = units[range.name] || "";
      range.setAttribute("aria-label", name.textContent.trim());
      function say() { range.setAttribute("aria-valuetext", (range.value + " " + unit).trim()); }
      if (says[range.name]) {               // the slider's number is a power of ten, say: show it in words instead
        var out = document.createElement("output"), own = range.nextElementSibling;
        if (own) own.hidden = true;
        range.after(out);
        say = function () {
          out.textContent = view.signal(says[range.name]);
          range.setAttribute("aria-valuetext", out.textContent);
        };
        view.addSignalListener(says[range.name], say);
      } else { range.addEventListener("input", say); }
      say();
    });
  }

  // A slider for the round, or the time in it, has a button that plays it. When the picture is first seen it plays once and
  // goes back to where it stood, unless the page asks for a guess first, or the reader wants no motion or was quicker.
  function playing(picture, seen) {
    var range = picture.querySelector("input[type=range]:is([name=round], [name=time])");
    if (!range) return;
    var button = document.createElement("button"), timer = 0, first = range.value, last = Number(range.max);
    function set(value) {
      range.value = value;
      range.dispatchEvent(new Event("input", { bubbles: true }));
    }
    function stop() {
      clearInterval(timer);
      timer = 0;
      button.textContent = "▶";
      button.setAttribute("aria-label", "Play the rounds");
    }
    function play(home) {
      var step = Math.max(1, Math.ceil((last - range.min) / 25));
      if (Number(range.value) >= last) set(range.min);
      button.textContent = "❚❚";
      button.setAttribute("aria-label", "Pause");
      timer = setInterval(function () {
        set(Math.min(last, Number(range.value) + step));
        if (Number(range.value) < last) return;
        stop();
        if (home) setTimeout(function () { if (!timer && Number(range.value) === last) set(first); }, 900);
      }, 160);
    }
    button.type = "button";
    button.className = "fl-play-rounds";
    button.addEventListener("click", function () { if (timer) stop(); else play(false); });
    picture.addEventListener("pointerdown", function (event) { if (event.target !== button) stop(); });
    picture.addEventListener("keydown", function (event) { if (event.target !== button) stop(); });
    range.before(button);
    stop();
    if (seen || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    new IntersectionObserver(function (entries, watch) {
      if (!entries.some(function (entry) { return entry.isIntersecting; })) return;
      watch.disconnect();
      if (!timer && range.value === first) play(true);
    }, { threshold: 0.9 }).observe(picture);
  }

  function draw(vegaEmbed, div) {
    var spec = JSON.parse(div.querySelector("script").textContent), key = location.pathname + "#" + div.id, kept = {};
    var keep = (spec.usermeta || {}).keep || [], picture = div.querySelector(".fl-vega-picture");
    try { kept = JSON.parse(localStorage.getItem(key) || "{}"); } catch (e) { /* no storage: nothing is kept */ }
    (spec.params || []).forEach(function (p) { if (p.name in kept) p.value = kept[p.name]; });
    spec.background = null;                 // the style sheet turns it round in the dark, as it does the stills
    spec.config = Object.assign({ text: { color: "#1b1f24" } }, spec.config);
    return vegaEmbed(picture, spec, { actions: false, renderer: "svg" }).then(function (result) {
      speak(picture, spec, result.view);
      playing(picture, keep.length || (spec.usermeta || {}).waits);
      keep.forEach(function (name) {        // the reader's guess is there again next time
        result.view.addSignalListener(name, function (signal, value) {
          kept[name] = value;
          try { localStorage.setItem(key, JSON.stringify(kept)); } catch (e) { /* as above */ }
        });
      });
      div.dataset.drawn = "yes";
    });
  }

  // The cell `guess = None` cannot be written into here: a slider stands below it. The reader's guess is kept, set in a chart
  // that asks for it, too, and said again below the first other figure whose caption speaks of it.
  function guessing() {
    var codes = Array.from(document.querySelectorAll("div.cell_input pre"));
    var code = codes.find(function (pre) { return /^guess = None/.test(pre.textContent.trim()); });
    if (!code || !code.closest("div.cell")) return;
    function asked(script) {
      return (JSON.parse(script.textContent).params || []).find(function (p) { return p.name === "guess"; });
    }
    var chart = Array.from(document.querySelectorAll(".fl-vega script")).find(asked), own = chart && asked(chart).bind;
    var share = Number((code.textContent.match(/such as ([\d.]+)/) || [0, 0])[1]) <= 1;
    var ends = own || (share ? { min: 0, max: 1, step: 0.01 } : { min: 0, max: 20, step: 0.1 }), key = location.pathname + "#guess";
    var row = document.createElement("label"), range = document.createElement("input"), out = document.createElement("output");
    var captions = Array.from((chart ? chart.closest("figure") : document).querySelectorAll("figcaption"));
    var caption = captions.find(function (c) { return !own && (chart || /guess/i.test(c.textContent)); });
    var again = document.createElement("b");
    function show() {
      out.textContent = range.value;
      again.textContent = " Your guess: " + range.value + ".";
      if (caption) caption.append(again);
      if (own) document.querySelectorAll(".fl-vega input[name=guess]").forEach(function (its) {
        its.value = range.value;
        its.dispatchEvent(new Event("input", { bubbles: true }));
      });
    }
    range.type = "range";
    ["min", "max", "step"].forEach(function (name) { range[name] = ends[name]; });
    range.value = (Number(ends.min) + Number(ends.max)) / 2;
    row.className = "fl-guess";
    row.append("your guess", range, out);
    range.setAttribute("aria-label", "your guess");
    out.textContent = "?";
    code.closest("div.cell").append(row);
    range.addEventListener("input", function () {
      show();
      try { localStorage.setItem(key, range.value); } catch (e) { /* no storage: nothing is kept */ }
    });
    try { var kept = localStorage.getItem(key); } catch (e) { /* as above */ }
    if (kept) { range.value = kept; out.textContent = kept; if (caption) show(); }
  }

  window.addEventListener("load", function () {
    guessing();
    var divs = Array.from(document.querySelectorAll(".fl-vega"));
    if (!divs.length) return;
    fetched().catch(fetched).then(function (vegaEmbed) {
      divs.forEach(function (div) { div.hidden = false; });   // in Jupyter, which draws the spec itself, it stays hidden
      divs.forEach(function (div) { draw(vegaEmbed, div); });
      // Vega measures when the window changes; a sidebar that comes or goes later changes the column once more
      divs.forEach(function (div) {
        var wide = div.clientWidth;
        new ResizeObserver(function () {
          if (div.clientWidth !== wide) { wide = div.clientWidth; window.dispatchEvent(new Event("resize")); }
        }).observe(div);
      });
    }, function (error) { console.error("Charts stay as they are without a script: " + (error.message || "Vega did not load")); });
  });
})();
