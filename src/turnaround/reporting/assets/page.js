// The page's behaviour: figures drawn when they come into view, what is folded away, tables sorted, light and dark,
// blocks replaced in place.
// Colours come from page.css; a trace says what it is (meta.series, meta.hue, meta.role), never how it looks.
"use strict";
(() => {
  const NUM_COLOURS = 8;
  const root = document.documentElement;
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const figures = new Map(); // element -> {json, state: "waiting" | "drawing" | "drawn"}
  const sorted = new Map(); // name of a table -> {column, direction}
  let library = null;

  // --- light and dark

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

  function remembered(theme) { // storage may be forbidden, and throws then
    try {
      if (theme) sessionStorage.setItem("turnaround-theme", theme);
      return sessionStorage.getItem("turnaround-theme");
    } catch (error) {
      return null;
    }
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    remembered(theme);
    showTheme();
    redrawAll();
  }

  function showTheme() {
    document.getElementById("theme").textContent = isDark() ? "Light theme" : "Dark theme"; // what it will do
  }

  function inLight(work) { // paper and downloads are light whatever the screen is
    const before = root.dataset.theme;
    root.dataset.theme = "light";
    try {
      return work();
    } finally {
      if (before) root.dataset.theme = before;
      else delete root.dataset.theme;
    }
  }

  // --- figures

  function palette() {
    const style = getComputedStyle(root);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    return {
      series: Array.from({length: NUM_COLOURS}, (_, i) => read(`s${i}`)),
      ink: read("ink"), quiet: read("quiet"), grid: read("grid"), ideal: read("ideal"), paper: read("paper"),
      low: read("scale-low"), high: read("scale-high"),
    };
  }

  // Colours of the style sheets have six digits.
  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const LIGHTEST = 0.5; // share of the paper, and of the ink: a line must be seen, and its colour be told
  const DARKEST = 0.5;

  function faint(colour, share) {
    return `rgba(${channels(colour).join(",")},${share})`;
  }

  function shaded(colour, shade, colours) { // 0: towards the paper, 0.5: as it is, 1: towards the ink
    const other = channels(shade < 0.5 ? colours.paper : colours.ink);
    const share = Math.abs(shade - 0.5) * 2 * (shade < 0.5 ? LIGHTEST : DARKEST);
    const mixed = channels(colour).map((value, i) => Math.round(value * (1 - share) + other[i] * share));
    return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
  }

  function colouredTrace(trace, colours) {
    const {series = 0, role = "", hue = series, shade = 0.5} = trace.meta || {};
    const colour = role === "ideal" ? colours.ideal : shaded(colours.series[hue % NUM_COLOURS], shade, colours);
    const shown = {...trace};
    if (role === "matrix" || trace.type === "heatmap") {
      shown.colorscale = [[0, colours.low], [1, colours.high]];
      return shown;
    }
    shown.line = {...trace.line, color: colour};
    shown.marker = {...trace.marker, color: colour};
    if (trace.type === "bar") {
      shown.marker.line = {...(trace.marker || {}).line, color: colours.paper};
      if (shown.marker.pattern) shown.marker.pattern = {...shown.marker.pattern, fgcolor: colours.paper};
      delete shown.line;
    } else if (String((trace.marker || {}).symbol).includes("open")) {
      shown.marker.line = {width: 2, ...(trace.marker || {}).line, color: colour};
    }
    for (const name of ["error_x", "error_y"]) {
      if (trace[name]) shown[name] = colouredBars(trace[name], trace.type === "bar" ? colours.ink : colour);
    }
    if (trace.fill && trace.fill !== "none") shown.fillcolor = faint(colour, role === "overfit" ? 0.1 : 0.18);
    return shown;
  }

  function colouredBars(bars, colour) { // one of no length would be drawn as two strokes
    const drawn = (lengths) => lengths && lengths.map((length) => length || null);
    return {...bars, array: drawn(bars.array), arrayminus: drawn(bars.arrayminus), color: colour};
  }

  function colouredAxis(axis, colours) {
    return {
      gridcolor: colours.grid, linecolor: colours.grid, zerolinecolor: colours.grid, tickcolor: colours.grid,
      fixedrange: window.matchMedia("(pointer: coarse)").matches, // a finger scrolls the page
      ...axis,
    };
  }

  function coloured(json) {
    const colours = palette();
    const layout = {...json.layout};
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis[0-9]*$/.test(name)) layout[name] = colouredAxis(layout[name], colours);
    }
    layout.xaxis = layout.xaxis || colouredAxis({}, colours);
    layout.yaxis = layout.yaxis || colouredAxis({}, colours);
    if ((layout.legend || {}).orientation === "h") { // on a narrow screen it would take the plot's width, not its height
      layout.legend = {...layout.legend, yref: "container", y: 1, yanchor: "top"};
    }
    const data = json.data.map((trace) => colouredTrace(trace, colours));
    for (const trace of data) {
      if (trace.colorbar) trace.colorbar = {outlinewidth: 0, thickness: 12, ...trace.colorbar, tickcolor: colours.grid};
    }
    return {
      data,
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", uirevision: "kept",
        hoverlabel: {bgcolor: colours.paper, bordercolor: colours.quiet, font: {color: colours.ink}},
        ...layout,
        font: {family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12.5, ...layout.font, color: colours.ink},
      },
    };
  }

  const packed = () => Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));

  function started(text) {
    if (window.Plotly) return window.Plotly; // printing was quicker
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script); // runs at once; the page's policy knows its hash
    return window.Plotly;
  }

  async function unpacked() {
    const stream = new Blob([packed()]).stream().pipeThrough(new DecompressionStream("deflate"));
    return started(await new Response(stream).text());
  }

  const plotly = () => (library = library || unpacked());

  const MIN_CELL_PX = 8; // of a matrix: fewer cannot be told apart, nor pointed at
  const CELL_PX = 14; // of one that scrolls: there is room for a finger then
  const MATRIX_SIDES_PX = 200; // names of the rows, and the scale of colours

  function widened(place, data, layout) { // a matrix that does not fit is as wide as it needs, and scrolls in its own box
    const cells = Math.max(0, ...data.filter((trace) => trace.type === "heatmap").map((trace) => (trace.z[0] || []).length));
    const scrolls = MATRIX_SIDES_PX + MIN_CELL_PX * cells > place.clientWidth && cells > 0;
    if (scrolls) layout.width = MATRIX_SIDES_PX + CELL_PX * cells;
    place.classList.toggle("scrolls", scrolls);
    if (scrolls) place.tabIndex = 0; // by keys too
    else place.removeAttribute("tabindex");
  }

  async function draw(element) {
    const figure = figures.get(element);
    if (!figure || figure.state === "drawing" || isFolded(element)) return;
    figure.state = "drawing";
    try {
      const Plotly = await plotly();
      const {data, layout} = coloured(figure.json);
      const place = element.querySelector(".plot");
      widened(place, data, layout);
      await Plotly.react(place, data, layout, {displayModeBar: false, responsive: true});
      place.classList.add("drawn");
      figure.state = "drawn";
      if (figure.isStale) { // it changed, or the theme did, while it was drawn
        figure.isStale = false;
        await draw(element);
      }
    } catch (error) { // an old browser: the words stay in the picture's place
      figure.state = "waiting";
      console.error(error);
    }
  }

  function redraw(element) {
    const figure = figures.get(element);
    if (figure.state === "drawn") draw(element);
    else if (figure.state === "drawing") figure.isStale = true;
  }

  const redrawAll = () => { for (const element of figures.keys()) redraw(element); };

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, {rootMargin: "400px"});

  function watchFigure(element, json) {
    figures.set(element, {json, state: "waiting"});
    sizePlot(element, json);
    seen.observe(element);
  }

  function sizePlot(element, json) { // so that nothing moves when it is drawn
    element.querySelector(".plot").style.minHeight = `${(json.layout || {}).height || 400}px`;
  }

  function inPage(element) {
    return JSON.parse(element.querySelector("script[type='application/json']").textContent);
  }

  // What is not in view is drawn when there is nothing else to do, so that printing finds it.
  let isAtTheRest = false;

  function drawTheRest() {
    if (isAtTheRest) return;
    isAtTheRest = true;
    const idle = window.requestIdleCallback || ((work) => setTimeout(work, 200));
    const step = async () => {
      const next = [...figures].find(([element, figure]) => figure.state === "waiting" && !figure.wasTried && !isFolded(element));
      isAtTheRest = Boolean(next);
      if (!next) return;
      next[1].wasTried = true;
      await draw(next[0]);
      idle(step);
    };
    idle(step);
  }

  const TITLE_HEIGHT_PX = 44;
  const SAVED_WIDTH_PX = 1000;

  async function save(element, format) {
    const Plotly = await plotly();
    const {data, layout} = inLight(() => coloured(figures.get(element).json));
    const title = element.querySelector("h4").textContent;
    const height = (layout.height || 400) + TITLE_HEIGHT_PX;
    const below = 1 - TITLE_HEIGHT_PX / height;
    const shown = title.replace(/&/g, "&amp;").replace(/</g, "&lt;"); // plotly would take tags for its own
    const figure = {data, layout: {
      ...layout, height, width: SAVED_WIDTH_PX, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff",
      title: {text: shown, x: 0.015, xanchor: "left", y: 0.975, yref: "container", yanchor: "top", font: {size: 17}},
      margin: {...layout.margin, t: ((layout.margin || {}).t || 0) + TITLE_HEIGHT_PX},
      legend: {...layout.legend, ...((layout.legend || {}).yref === "container" ? {y: below} : {})},
    }};
    const filename = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "figure";
    await Plotly.downloadImage(figure, {format, filename, width: SAVED_WIDTH_PX, height, scale: format === "png" ? 2 : 1});
  }

  // --- paper

  const PAPER_WIDTH_PX = 330; // half of what A4 leaves between its margins, less the figure's own
  const PAPER_HEIGHT = 0.5; // of the height on a screen
  const PAPER_LEGEND_PX = 9; // more for each entry of the legend, which wraps into more rows

  function forPaper() { // nothing is waited for: the browser takes the page as it is when this returns
    if (!window.Plotly) started(new TextDecoder().decode(inflate(packed())));
    root.classList.add("on-paper");
    inLight(() => {
      for (const [element, figure] of figures) {
        const {data, layout} = coloured(figure.json);
        const place = element.querySelector(".plot");
        const entries = layout.showlegend === false ? 0 : data.filter((trace) => trace.showlegend !== false).length;
        const height = Math.round((layout.height || 400) * PAPER_HEIGHT + entries * PAPER_LEGEND_PX);
        place.style.minHeight = `${height}px`;
        const small = {...layout, width: PAPER_WIDTH_PX, height, font: {...layout.font, size: 8.5}};
        window.Plotly.react(place, data, small, {displayModeBar: false});
        place.classList.add("drawn");
        figure.state = "drawn";
      }
    });
  }

  function forScreen() {
    root.classList.remove("on-paper");
    for (const [element, figure] of figures) {
      sizePlot(element, figure.json);
      if (isFolded(element)) { // of no width now: drawn again when it is opened
        figure.state = "waiting";
        element.querySelector(".plot").classList.remove("drawn");
      }
    }
    redrawAll();
  }

  // --- what is folded away

  const unfolded = new Set(); // ids of headings that were opened

  const isFolded = (element) => Boolean(element.dataset.fold) && !unfolded.has(element.dataset.fold);

  function showFolds() {
    for (const element of document.querySelectorAll("[data-fold]")) element.classList.toggle("folded", isFolded(element));
    for (const button of document.querySelectorAll(".fold button")) {
      button.setAttribute("aria-expanded", String(unfolded.has(button.closest("[data-block]").dataset.block)));
    }
  }

  function setFold(id, isOpen) {
    if (isOpen) unfolded.add(id);
    else unfolded.delete(id);
    showFolds();
    showSwipes();
    pairUp();
    for (const [element] of figures) if (isOpen && element.dataset.fold === id) seen.observe(element);
    drawTheRest();
  }

  function followHash() { // whoever follows a link to what is folded away wants to see it
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const block = target && target.closest("[data-block]");
    if (!block) return;
    const id = block.dataset.fold || (block.querySelector(".fold") && block.dataset.block);
    if (id && !unfolded.has(id)) {
      setFold(id, true);
      target.scrollIntoView();
    }
    if (target.tagName === "DETAILS") target.open = true;
  }

  // --- contents, in the bar that stays in view

  function showContents() {
    const contents = document.querySelector("[data-block='contents'] nav");
    document.getElementById("bar-contents").replaceChildren(...(contents ? [contents.cloneNode(true)] : []));
    markPlace();
  }

  let marked = null;

  function markPlace() { // the last heading above the middle of the screen
    const links = [...document.querySelectorAll("#bar-contents a")];
    let here = null;
    for (const link of links) {
      const target = document.getElementById(link.hash.slice(1));
      if (target && target.getBoundingClientRect().top < window.innerHeight / 3) here = link;
    }
    if (here === marked && (!here || here.hasAttribute("aria-current"))) return;
    marked = here;
    for (const link of links) link.removeAttribute("aria-current");
    for (const list of document.querySelectorAll("#bar-contents ul")) list.classList.toggle("here", Boolean(here) && list.contains(here));
    if (!here) return;
    here.setAttribute("aria-current", "location");
    const row = document.getElementById("bar-contents");
    row.scrollLeft = here.offsetLeft - row.offsetLeft - row.clientWidth / 3;
  }

  // --- tables

  function keyOf(row, column) {
    const text = row.children[column].dataset.key;
    return text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
  }

  function compare(a, b) {
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  }

  function sortTable(table, column, direction) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, place) => ({row, place, key: keyOf(row, column)}));
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place; // unknown is last
      return direction * compare(a.key, b.key) || a.place - b.place;
    });
    body.append(...rows.map((entry) => entry.row));
    [...table.tHead.rows[0].cells].forEach((cell, place) => {
      if (place === column) cell.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
    sorted.set(table.dataset.table, {column, direction});
  }

  function clickedSort(button) {
    const cell = button.closest("th");
    sortTable(cell.closest("table"), cell.cellIndex, cell.getAttribute("aria-sort") === "ascending" ? -1 : 1);
  }

  function showSwipes() { // only where a table is wider than its place
    for (const hint of document.querySelectorAll(".swipe")) {
      const place = hint.parentElement;
      hint.classList.toggle("needed", place.scrollWidth > place.clientWidth + 1);
    }
  }

  // Figures stand in pairs; one that is left over has the row to itself.
  function pairUp() {
    let group = [];
    const close = () => {
      group.forEach((figure, at) => figure.classList.toggle("wide", at === group.length - 1 && at % 2 === 0));
      group = [];
    };
    for (const element of document.getElementById("page").children) {
      if (element.classList.contains("folded")) continue;
      if (element.classList.contains("plotted")) group.push(element);
      else close();
    }
    close();
  }

  // --- blocks, for the live page

  function elementOf(id) {
    return document.querySelector(`[data-block="${CSS.escape(id)}"]`);
  }

  function place(element, after) { // after the block of that id; else at the end, before the footer
    const before = after && elementOf(after);
    if (before) before.after(element);
    else {
      const footer = elementOf("footer");
      if (footer) footer.before(element);
      else document.getElementById("page").append(element);
    }
  }

  function setHtml(element, html) {
    const open = [...element.querySelectorAll("details[open]")].map((one) => one.dataset.key);
    const focused = element.contains(document.activeElement) ? [...element.querySelectorAll("a, button, summary")].indexOf(document.activeElement) : -1;
    const scrolled = [...element.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    element.innerHTML = html; // escaped by the server, and the policy lets no script in it run
    for (const one of element.querySelectorAll("details")) if (open.includes(one.dataset.key)) one.open = true;
    for (const table of element.querySelectorAll("table.sortable")) {
      const how = sorted.get(table.dataset.table);
      if (how && how.column < table.tHead.rows[0].cells.length) sortTable(table, how.column, how.direction);
    }
    [...element.querySelectorAll(".scroll")].forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
    if (focused >= 0) (element.querySelectorAll("a, button, summary")[focused] || element).focus({preventScroll: true});
  }

  function newElement(id, isFigure, fold) {
    const element = document.createElement(isFigure ? "figure" : "section");
    element.className = isFigure ? "block plotted" : "block";
    element.dataset.block = id;
    element.id = id.replaceAll("/", "-");
    if (fold) element.dataset.fold = fold;
    return element;
  }

  function setFigure(element, figure) {
    const known = figures.get(element);
    if (!known) {
      element.innerHTML = '<h4></h4><div class="plot" role="img"><p class="alt"></p></div><figcaption></figcaption>'
        + '<p class="downloads"><button type="button" data-save="png">PNG<span class="hidden"></span></button> '
        + '<button type="button" data-save="svg">SVG<span class="hidden"></span></button></p>';
      watchFigure(element, figure);
      if (document.readyState === "complete") drawTheRest();
    } else known.json = figure;
    element.querySelector("h4").textContent = figure.title;
    element.querySelector(".alt").textContent = figure.alt;
    element.querySelector(".plot").setAttribute("aria-label", figure.alt);
    element.querySelector("figcaption").textContent = figure.caption;
    for (const span of element.querySelectorAll(".downloads .hidden")) span.textContent = ` of ${figure.title}`;
    if (known) redraw(element);
  }

  // {id, html} or {id, figure: {title, caption, alt, data, layout}}; `after` is the id of the block before a new one.
  // and `fold` that of the heading under which it is folded away.
  function setBlock({id, html, figure, fold, after}) {
    let element = elementOf(id);
    if (!element) {
      element = newElement(id, Boolean(figure), fold);
      place(element, after);
      element.classList.toggle("folded", isFolded(element));
      pairUp();
    }
    if (figure) setFigure(element, figure);
    else setHtml(element, html);
    showSwipes();
    if (id === "contents") showContents();
    else if (element.querySelector(".fold")) showFolds();
  }

  function removeBlock(id) {
    const element = elementOf(id);
    if (!element) return;
    if (figures.delete(element) && window.Plotly) window.Plotly.purge(element.querySelector(".plot"));
    seen.unobserve(element);
    element.remove();
    pairUp();
  }

  // --- beginning

  const stored = remembered();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored; // before anything is painted

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") setTheme(isDark() ? "light" : "dark");
    else if (button.closest(".fold")) setFold(button.closest("[data-block]").dataset.block, button.getAttribute("aria-expanded") !== "true");
    else if (button.classList.contains("sort")) clickedSort(button);
    else if (button.dataset.save) save(button.closest("figure"), button.dataset.save);
  });
  document.addEventListener("DOMContentLoaded", () => {
    root.classList.add("scripted");
    showTheme();
    showFolds();
    showContents();
    pairUp();
    for (const element of document.querySelectorAll("figure.plotted")) watchFigure(element, inPage(element));
    showSwipes();
    followHash();
  });
  window.addEventListener("hashchange", followHash);
  window.addEventListener("resize", showSwipes);
  document.addEventListener("scroll", () => window.requestAnimationFrame(markPlace), {passive: true});
  // The library is unpacked at once, and the figures out of view a little later: whoever scrolls finds them drawn.
  window.addEventListener("load", () => { plotly().catch(console.error); setTimeout(drawTheRest, 1000); });
  window.addEventListener("beforeprint", forPaper);
  window.addEventListener("afterprint", forScreen);
  prefersDark.addEventListener("change", () => { showTheme(); redrawAll(); });

  window.turnaround = {setBlock, removeBlock};
})();
