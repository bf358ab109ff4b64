// The page of `turnaround serve`. Every name and message is put in as text, never as markup.
"use strict";

const MOST_CARDS = 24;
const MOST_BARS = 5;
const $ = (id) => document.getElementById(id);
const token = location.hash.slice(1);
const headers = token ? { Authorization: `Bearer ${token}` } : {};
let limits = null;
let queue = Promise.resolve(); // one picture after the other: a dropped folder of photos does not crowd others out

const percent = (share) => `${(100 * share).toFixed(1)} %`;

async function answer(response) {
  let content = null;
  try { content = await response.json(); } catch { /* not JSON: told below */ }
  if (response.ok && content) return content;
  throw new Error(content?.error ?? `The server answered with ${response.status}.`);
}

async function tellAbout() {
  if (!token && "needsToken" in document.body.dataset) {
    $("run").textContent = "This page needs its token";
    $("about").textContent = "Open the whole address that turnaround serve has printed: it ends with # and the token.";
    $("drop").hidden = document.querySelector("footer").hidden = true;
    return;
  }
  try {
    limits = await answer(await fetch("/about", { headers }));
  } catch (error) {
    $("about").textContent = error.message;
    return;
  }
  const accuracy = limits.val_accuracy === null ? "" : `, ${percent(limits.val_accuracy)} right on its validation images`;
  document.title = `${limits.run} · turnaround`;
  $("run").textContent = limits.run;
  $("about").textContent = `${limits.model}, ${limits.classes.length} ${limits.classes.length === 1 ? "class" : "classes"}${accuracy}`;
  $("count").textContent = `The ${limits.classes.length} classes it knows`;
  for (const name of limits.classes) {
    const item = document.createElement("li");
    item.textContent = name;
    $("classes").append(item);
  }
}

function newCard(file) {
  const card = $("card").content.firstElementChild.cloneNode(true);
  const image = card.querySelector("img");
  const url = URL.createObjectURL(file);
  image.alt = file.name || "the pasted picture";
  image.onload = () => URL.revokeObjectURL(url);
  image.onerror = () => { URL.revokeObjectURL(url); card.querySelector(".thumb").classList.add("none"); };
  image.src = url;
  card.querySelector(".name").textContent = file.name || "pasted picture";
  $("answers").prepend(card);
  while ($("answers").children.length > MOST_CARDS) $("answers").lastElementChild.remove();
  return card;
}

function fill(card, classes) {
  card.querySelector(".state").textContent = classes[0].name;
  for (const { name, probability } of classes) {
    const bar = $("bar").content.firstElementChild.cloneNode(true);
    bar.querySelector(".label").textContent = name;
    bar.querySelector(".share").textContent = percent(probability);
    bar.querySelector(".fill").style.width = `${100 * probability}%`;
    card.querySelector(".bars").append(bar);
  }
}

async function classify(file, card) {
  try {
    if (limits && file.size > limits.max_bytes) {
      throw new Error(`The picture is larger than ${limits.max_bytes / 1e6} MB. Send a smaller one.`);
    }
    const response = await fetch(`/classify?top=${MOST_BARS}`, { method: "POST", headers, body: file });
    fill(card, (await answer(response)).classes);
  } catch (error) {
    card.classList.add("failed");
    card.querySelector(".state").textContent = error instanceof TypeError ? "The server cannot be reached." : error.message;
  }
}

function take(files) {
  for (const file of [...files].slice(0, MOST_CARDS)) {
    const card = newCard(file);
    queue = queue.then(() => classify(file, card));
  }
}

$("file").addEventListener("change", (event) => { take(event.target.files); event.target.value = ""; });
document.addEventListener("paste", (event) => take(event.clipboardData.files));
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") take(event.dataTransfer.files);
  });
}
tellAbout();
