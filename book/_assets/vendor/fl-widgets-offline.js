// Loaded after require.js and before embed-amd.js (see nb_ipywidgets_js in _config.yml).
// The widget manager's icon fonts come from this book's own folder, not from a CDN.
(function () {
  var root = document.documentElement.dataset.content_root || "./";   // set by Sphinx on every page
  var base = new URL(root + "_static/vendor/", document.baseURI).href;
  requirejs.config({ paths: {
    // embed-amd.js defines both modules itself; the paths only tell it where its font files lie
    "@jupyter-widgets/html-manager": base + "html-manager/dist/index",
    "@jupyter-widgets/html-manager/dist/libembed-amd": base + "html-manager/dist/libembed-amd",
    "anywidget": base + "anywidget/index"
  } });
})();
