// The live page: what a server pushes is put in its place. Nothing is asked for again and again.
"use strict";
(() => {
  const CSS_TEXT = `
    .now { border: 0; margin: 0; padding: 0; font-size: 1.2rem; }
    .counts-now { display: flex; flex-wrap: wrap; gap: .3rem .5rem; margin: .4rem 0 0; }
    [data-block^="live/run/"] { grid-column: span 1; }
    [data-block="live"] { margin-top: .5rem; }
    [data-block^="live/run/"] + [data-block]:not([data-block^="live/run/"]) { margin-top: .75rem; }
    .now-run { background: var(--paper); border: 1px solid var(--line); border-left-width: 4px; border-radius: .5rem; padding: .7rem 1rem; }
    .now-run.running { border-left-color: var(--accent); }
    .now-run.failed, .now-run.diverged, .now-run.unreadable { border-left-color: var(--problem); }
    .now-run.interrupted { border-left-color: var(--caution); border-left-style: double; }
    .now-run h3 { font-size: 1rem; margin: 0; }
    .now-run p { margin: .3rem 0 0; font-size: .9rem; }
    .now-run .figures { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; font-variant-numeric: tabular-nums; }
    .now-run .figures span { color: var(--quiet); }
    .now-run .figures b { color: var(--ink); font-weight: 650; }
    .now-run .warn { font-weight: 500; }
    .now-run progress { display: block; width: 100%; height: .55rem; margin: .5rem 0 .1rem; border: 0; border-radius: .3rem; background: var(--grid); appearance: none; overflow: hidden; }
    .now-run progress::-webkit-progress-bar { background: var(--grid); }
    .now-run progress::-webkit-progress-value { background: var(--accent); }
    .now-run progress::-moz-progress-bar { background: var(--accent); }
    .now-run:not(.running) progress::-webkit-progress-value { background: var(--ideal); }
    .now-run:not(.running) progress::-moz-progress-bar { background: var(--ideal); }
    .done { list-style: none; margin: 0; padding: 0; columns: 14rem auto; column-gap: 1.5rem; font-size: .9rem; color: var(--quiet); }
    .done li { break-inside: avoid; padding: .1rem 0; }
    .done b { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
    .lost { position: fixed; left: 50%; bottom: 1rem; transform: translateX(-50%); max-width: calc(100% - 2rem); z-index: 3;
      background: var(--caution-ground); color: var(--caution); border: 1px solid var(--caution); border-radius: .5rem; padding: .4rem 1rem; font-weight: 600; }
    .lost:empty { display: none; }
    @media (max-width: 60rem) { [data-block^="live/run/"] { grid-column: 1 / -1; } }
    @media print { .lost { display: none; } .now-run { break-inside: avoid; } }
  `;
  const LOST = "Connection lost, trying again. What you see is as it was.";
  const LOST_FOR_LONG = `${LOST} If the server was started anew, open the address that it has printed.`;
  const LONG_MS = 30000;
  const UNSEEN_MS = 60000;
  const AGAIN_MS = 5000; // a browser gives up by itself when it is refused, and must be told to go on

  const sheet = new CSSStyleSheet();
  sheet.replaceSync(CSS_TEXT);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];

  const main = document.getElementById("page");
  const digests = new Map(); // id of a block -> what it shows
  const states = new Map(); // a run's name -> what was last said of it
  let heard = "";
  let lostSince = null;
  let lost = null;
  let told = null;
  let source = null;
  let unseen = null;

  function region(name) { // read out by screen readers when it changes
    const element = document.createElement("div");
    element.className = name;
    element.setAttribute("role", "status");
    element.setAttribute("aria-live", "polite");
    document.body.append(element);
    return element;
  }

  function begin() {
    lost = region("lost");
    told = region("hidden");
    const mark = document.querySelector("[data-heard]");
    if (mark) {
      heard = mark.dataset.heard;
      for (const [id, digest] of Object.entries(JSON.parse(mark.dataset.digests))) digests.set(id, digest);
      mark.closest("[data-block]").remove();
    }
    for (const element of main.querySelectorAll("[data-said]")) isNews(element.dataset.said);
    connect();
  }

  function isNews(said) { // "name: state"
    const at = said.lastIndexOf(": ");
    const before = states.get(said.slice(0, at));
    states.set(said.slice(0, at), said);
    return before !== said;
  }

  function setBlock(block) {
    if (digests.get(block.id) === block.digest) return; // a server that was started anew sends all of them
    digests.set(block.id, block.digest);
    window.turnaround.setBlock(block);
    const element = document.querySelector(`[data-block="${CSS.escape(block.id)}"]`);
    const said = [...element.querySelectorAll("[data-said]")].map((one) => one.dataset.said);
    const news = said.filter(isNews);
    if (news.length) told.textContent = news.join("; ");
  }

  function setOrder(ids) {
    const wanted = new Set(ids);
    for (const element of [...main.querySelectorAll(":scope > [data-block]")]) {
      if (!wanted.has(element.dataset.block)) forget(element.dataset.block);
    }
    let place = main.firstElementChild;
    for (const id of ids) {
      const element = main.querySelector(`:scope > [data-block="${CSS.escape(id)}"]`);
      if (!element) continue;
      if (element === place) place = place.nextElementSibling;
      else main.insertBefore(element, place);
    }
  }

  function forget(id) {
    digests.delete(id);
    window.turnaround.removeBlock(id);
  }

  function connect() {
    if (source && source.readyState !== EventSource.CLOSED) return;
    const own = source = new EventSource(`/events?since=${encodeURIComponent(heard)}`);
    own.addEventListener("open", () => {
      lostSince = null;
      lost.textContent = "";
    });
    own.addEventListener("block", (event) => setBlock(JSON.parse(event.data)));
    own.addEventListener("order", (event) => {
      heard = event.lastEventId;
      setOrder(JSON.parse(event.data));
    });
    own.addEventListener("error", () => {
      lostSince = lostSince || Date.now();
      const text = Date.now() - lostSince > LONG_MS ? LOST_FOR_LONG : LOST;
      if (lost.textContent !== text) lost.textContent = text;
      if (own.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_MS);
    });
  }

  function disconnect() {
    if (source) source.close();
    source = null;
  }

  // A browser opens only six connections to one server: a page that nobody looks at gives its own back.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(unseen);
    if (document.hidden) unseen = setTimeout(disconnect, UNSEEN_MS);
    else connect();
  });
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
