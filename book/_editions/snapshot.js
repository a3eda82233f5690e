// Runs in a page of the built site, after everything is drawn. Gives its article as it can be printed: no script, no
// button, folded parts open, a control replaced by the value it has. `root` is the site's address, `pages` the names
// of the pages that the edition has, `name` that of this one. Returns XHTML in which links of the book are
// "page:NAME#ID", ids begin with the page's slug, once with formulas as MathJax drew them and once as MathML.
([root, pages, name]) => {
  const slug = (page) => page.replace(/\//g, "-");
  const article = document.querySelector("article");
  const all = (selector, from = article) => [...from.querySelectorAll(selector)];
  const make = (tag, className, text = "") => {
    const made = document.createElement(tag);
    made.className = className;
    made.textContent = text;
    return made;
  };

  // Formulas first, while they are where MathJax knows them.
  const formulas = new Map();
  const styles = [];
  if (window.MathJax && MathJax.startup && MathJax.startup.document) {
    for (const item of MathJax.startup.document.math) {
      if (!item.typesetRoot) continue;
      formulas.set(item.typesetRoot, MathJax.startup.toMML(item.root));
      const inner = item.typesetRoot.querySelector("mjx-math");
      const room = article.clientWidth;
      if (item.display && inner && inner.scrollWidth > room) {
        item.typesetRoot.style.fontSize = `${Math.floor((100 * room) / inner.scrollWidth)}%`;
      }
    }
    const sheet = document.getElementById("MJX-CHTML-styles");
    if (sheet) styles.push(...[...sheet.sheet.cssRules].map((rule) => rule.cssText));
  }

  // Explorers of ipywidgets: the picture in sight, and what the sliders say.
  for (const view of all("script[type='application/vnd.jupyter.widget-view+json']")) {
    const box = view.parentElement;
    const figure = make("div", "edition-explorer");
    for (const image of all("img", box)) {
      if (!image.checkVisibility({ visibilityProperty: true }) || !image.offsetWidth) continue;
      figure.append(image.cloneNode());
    }
    const set = all(".widget-slider", box)
      .filter((slider) => slider.checkVisibility())
      .map((s) => [".widget-label", ".widget-readout"].map((c) => s.querySelector(c)?.textContent.trim()).join(" "));
    if (set.length) figure.append(make("p", "edition-position", `Drawn with ${set.join(", ")}.`));
    for (const text of all(".widget-html-content", box)) {
      if (text.checkVisibility() && !text.querySelector("img") && text.textContent.trim()) figure.append(text.cloneNode(true));
    }
    box.replaceChildren(figure);
  }

  // Charts: the picture, and where its controls stand.
  for (const chart of all(".fl-vega")) {
    const set = all(".vega-bind", chart).map((bind) => {
      const label = bind.querySelector(".vega-bind-name")?.textContent.trim() ?? "";
      const range = bind.querySelector("input[type=range]");
      const tick = bind.querySelector("input[type=checkbox]");
      const chosen = bind.querySelector("input:checked, select");
      if (range) return `${label}: ${range.getAttribute("aria-valuetext") ?? range.value}`;
      if (tick) return `${label}: ${tick.checked ? "yes" : "no"}`;
      return `${label}: ${chosen?.value ?? ""}`;
    });
    const picture = chart.querySelector("svg.marks");
    chart.replaceChildren(...(picture ? [picture] : []));
    if (set.length) chart.append(make("p", "edition-position", `Drawn with ${set.join("; ")}.`));
  }

  // The drawing of a round: its wide form, and all its steps one below the other.
  for (const round of all(".fl-round")) {
    all("svg.fl-narrow, .fl-steps, input", round).forEach((e) => e.remove());
    const steps = make("ol", "edition-steps");
    all("p.fl-said", round).slice(1).forEach((p) => steps.append(make("li", "", p.textContent)));
    all("[aria-live]", round).forEach((e) => e.remove());
    if (steps.children.length) round.append(steps);
  }

  // Folded parts.
  for (const fold of all("details").reverse()) {
    const open = make("div", `edition-open ${fold.className}`);
    if (fold.id) open.id = fold.id;
    const summary = fold.querySelector(":scope > summary");
    if (summary && !fold.classList.contains("hide")) open.append(make("p", "edition-head", summary.textContent.trim()));
    summary?.remove();
    open.append(...fold.childNodes);
    fold.replaceWith(open);
  }
  all(".toggle-hidden").forEach((e) => e.classList.remove("toggle-hidden"));

  // A table that sorts and filters: all of its rows, and its heads as text.
  all(".fl-moves").forEach((e) => e.classList.remove("fl-moves"));
  all("th button").forEach((e) => e.replaceWith(e.textContent));

  const useless = "script, style, template, noscript, button, input, label, select, .headerlink, .copybtn, .toggle-button, " +
    ".fl-controls, form, output, mjx-assistive-mml, iframe, link";
  all(useless).forEach((e) => e.remove());
  all("*").filter((e) => !e.checkVisibility() && e.getAttribute("hidden") !== null).forEach((e) => e.remove());
  all("[role=doc-biblioentry]").forEach((e) => e.removeAttribute("role")); // EPUB gave it up
  all("[tabindex]").forEach((e) => e.removeAttribute("tabindex"));
  all("[contenteditable], [onclick]").forEach((e) => ["contenteditable", "onclick"].forEach((a) => e.removeAttribute(a)));

  for (const image of all("img")) image.setAttribute("src", image.src);
  for (const link of all("a")) {
    const [path, id] = link.href && link.href.baseVal === undefined ? link.href.split("#") : [""];
    const page = path.startsWith(root) ? path.slice(root.length).replace(/\.html$/, "") : null;
    if (page !== null && pages.includes(page)) {
      link.setAttribute("href", `page:${page}${id ? `#${slug(page)}--${decodeURIComponent(id)}` : ""}`);
    } else if (!/^https?:/.test(path)) {
      const text = make("span", link.className);
      if (link.id) text.id = link.id;
      text.append(...link.childNodes);
      link.replaceWith(text);
    }
    link.removeAttribute("target");
  }
  const mine = `${slug(name)}--`;
  const seen = new Set();
  const names = ["for", "aria-labelledby", "aria-describedby", "aria-controls", "headers"];
  for (const e of [article, ...all("*")]) {
    for (const { name: key, value } of [...e.attributes]) {
      if (key === "id") {
        if (seen.has(value)) e.removeAttribute(key);
        else e.setAttribute(key, mine + value.replace(/\s/g, "-"));
        seen.add(value);
      }
      else if (names.includes(key)) e.setAttribute(key, value.split(/\s+/).map((v) => mine + v).join(" "));
      else if (value.includes("url(#")) e.setAttribute(key, value.replace(/url\((["']?)#/g, `url($1#${mine}`));
      else if (/^(xlink:)?href$/.test(key) && value.startsWith("#")) e.setAttribute(key, `#${mine}${value.slice(1)}`);
    }
  }
  const text = () => new XMLSerializer().serializeToString(article);
  const print = text();
  for (const [drawn, mathml] of formulas) {
    const holder = document.createElement("div");
    holder.innerHTML = mathml;
    const math = holder.querySelector("math");
    if (drawn.isConnected && math) drawn.replaceWith(math);
  }
  return {
    print,
    reflow: text(),
    title: article.querySelector("h1")?.textContent.trim() ?? name,
    sections: all("h2").map((h) => [h.closest("[id]")?.id ?? "", h.textContent.trim()]),
    styles,
  };
}
