// The live page: what a server pushes is put in its place. Nothing is asked for again and again.
"use strict";
(() => {
  const LOST = "Connection lost, trying again. What you see is as it was.";
  const LOST_FOR_LONG = `${LOST} If the server was started anew, open the address that it has printed.`;
  const LONG_MS = 30000;
  const UNSEEN_MS = 60000;
  const AGAIN_MS = 5000; // a browser gives up by itself when it is refused, and must be told to go on

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
