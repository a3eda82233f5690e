// Sorts and filters the table of claims (fl.lab.ledger), in the page, with no network. Each <tbody> is a claim with its
// readings below it, and they stay together.
(function () {
  function start(box) {
    var form = box.querySelector("form"), table = box.querySelector("table");
    var bodies = Array.from(table.tBodies), heads = Array.from(table.tHead.rows[0].cells);
    var order = ["inconsistent", "rounding", "not derivable", "matches"];
    bodies.forEach(function (body, k) { body.place = k; body.words = body.textContent.toLowerCase(); });

    function filter() {
      var paper = form.paper.value, verdict = form.verdict.value, text = form.text.value.trim().toLowerCase(), shown = 0;
      box.classList.toggle("fl-all", form.readings.checked);
      bodies.forEach(function (body) {
        var fits = (!paper || body.dataset.paper === paper) && (!verdict || body.rows[0].dataset.verdict === verdict) &&
          (!text || body.words.indexOf(text) >= 0);
        body.hidden = !fits;
        shown += fits;
      });
      form.querySelector("output").textContent = shown + " of " + bodies.length + " claims";
    }

    function key(body, column) {
      if (column === 0) return body.place;
      var cell = body.rows[0].cells[column], text = cell.firstChild ? cell.firstChild.textContent : "";
      if (heads[column].textContent === "verdict") return order.indexOf(text);
      var number = parseFloat(text.replace(/[,−]/g, function (c) { return c === "," ? "" : "-"; }));
      return isNaN(number) || column === 1 || column === 5 ? text.toLowerCase() : number;
    }

    function sort(column) {
      var head = heads[column], up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(function (h) { h.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      bodies.slice().sort(function (a, b) {
        var x = key(a, column), y = key(b, column);
        if (typeof x !== typeof y) { x = typeof x === "number" ? 0 : 1; y = 1 - x; }  // numbers first
        var less = typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
        return (up ? less : -less) || a.place - b.place;
      }).forEach(function (body) { table.appendChild(body); });
    }

    heads.forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      while (head.firstChild) button.appendChild(head.firstChild);
      button.addEventListener("click", function () { sort(column); });
      head.appendChild(button);
    });
    form.addEventListener("input", filter);
    form.addEventListener("submit", function (event) { event.preventDefault(); });
    form.hidden = false;
    box.classList.add("fl-moves");
    var wanted = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (wanted && box.contains(wanted)) {                  // a link to one claim finds it, reading or not
      form.readings.checked = wanted.classList.contains("fl-reading");
      wanted.classList.add("fl-wanted");
    } else { wanted = null; form.verdict.value = "inconsistent"; }
    filter();
    if (wanted) wanted.scrollIntoView({ block: "center" });
  }
  window.addEventListener("load", function () { document.querySelectorAll(".fl-ledger").forEach(start); });
})();
