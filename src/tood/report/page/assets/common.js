"use strict";
// What every part of the page uses: the data, making elements, looks.

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const label = (name) => data.labels[name] ?? (name === "accuracy" ? "Accuracy" : name);
const percent = (share, digits = 1) => (100 * share).toFixed(digits);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const state = { run: 0, hidden: null, threshold: 0, sort: { key: "avg_auroc", down: true } };

// Everything becomes text: nothing in the data can turn into markup.
function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function options(select, entries, chosen) {
  const before = chosen ?? select.value;
  select.replaceChildren(...entries.map(([value, text]) => make("option", { value }, text)));
  select.closest("label").hidden = entries.length < 2; // nothing to choose
  select.value = entries.some(([value]) => String(value) === String(before)) ? before : entries[0][0];
}

// ---- looks

const LINES = ["#4477AA", "#EE6677", "#AA8822", "#2288BB", "#AA3377", "#7755CC", "#888888", "#CC6611"];
const DASHES = [null, "6 3", "2 2", "8 2 2 2"];
const TOOD_DASHES = { tood_mean_shift: "6 3", tood_joint: "12 3 2 3", tood_auto: "3 3", tood_prototype: "1 4" };
const others = Object.keys(data.labels).filter((name) => data.runs.some((run) => run.detectors.includes(name)));
function look(name) {
  if (name === "accuracy") return { stroke: "currentColor", dash: "1 3" };
  if (name.startsWith("tood_")) return { stroke: data.colours.tood, dash: TOOD_DASHES[name] ?? null };
  if (name === "energy") return { stroke: data.colours.energy, dash: null };
  const place = others.filter((other) => !other.startsWith("tood_") && other !== "energy").indexOf(name);
  return { stroke: LINES[place % LINES.length], dash: DASHES[Math.floor(place / LINES.length) % DASHES.length] };
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").textContent = theme === "dark" ? "Light colours" : "Dark colours";
}
const preferred = matchMedia("(prefers-color-scheme: dark)");
setTheme(preferred.matches ? "dark" : "light");
preferred.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
at("theme").addEventListener("click", () =>
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));

function draw(place, plot) {
  const box = at(place);
  const width = Math.floor(box.getBoundingClientRect().width);
  if (width) box.replaceChildren(plot(width));
}
