// Sorts and filters a table (fedlearn/book/sortable.py) in the page, with no network. Each <tbody> is an entry with the lines
// that belong to it, and they stay together.
(function () {
  function start(box) {
    var form = box.querySelector("form"), table = box.querySelector("table"), output = form.querySelector("output");
    var bodies = Array.from(table.tBodies), heads = Array.from(table.tHead.rows[0].cells);
    var choices = Array.from(form.querySelectorAll("select")), boxes = Array.from(form.querySelectorAll("[type=checkbox]"));
    bodies.forEach(function (body, k) { body.place = k; body.words = body.textContent.toLowerCase(); });

    function filter() {
      var text = form.text.value.trim().toLowerCase(), shown = 0;
      boxes.forEach(function (check) { box.classList.toggle("fl-with-" + check.name, check.checked); });
      bodies.forEach(function (body) {
        var fits = choices.every(function (c) { return !c.value || body.dataset[c.name] === c.value; }) &&
          (!text || body.words.indexOf(text) >= 0);
        body.hidden = !fits;
        shown += fits;
      });
      output.textContent = shown + " of " + bodies.length + " " + box.dataset.what;
    }

    function key(body, column) {
      var order = heads[column].dataset.order, cell = body.rows[0].cells[column];
      if (order === "place") return body.place;
      var text = cell.firstChild ? cell.firstChild.textContent : "";
      if (order && order !== "text") return order.split("|").indexOf(text);
      var number = parseFloat(text.replace(/[,−]/g, function (c) { return c === "," ? "" : "-"; }));
      return isNaN(number) || order === "text" ? text.toLowerCase() : number;
    }

    function sort(column) {
      var head = heads[column], up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(function (h) { h.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      bodies.slice().sort(function (a, b) {
        var x = key(a, column), y = key(b, column);
        if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;  // numbers first, both ways
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
    if (wanted && box.contains(wanted)) {                  // a link to one line finds it, hidden kind or not
      boxes.forEach(function (check) { check.checked = wanted.classList.contains(check.dataset.lines); });
      wanted.classList.add("fl-wanted");
    } else {
      wanted = null;
      choices.forEach(function (c) { c.value = c.dataset.start || ""; });
    }
    filter();
    if (wanted) wanted.scrollIntoView({ block: "center" });
  }
  window.addEventListener("load", function () { document.querySelectorAll(".fl-sortable").forEach(start); });
})();
