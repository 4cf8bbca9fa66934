"use strict";
// Shared by all scripts of the page: the data, making elements, colours.

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const label = (name) => data.labels[name] ?? (name === "accuracy" ? "Accuracy" : name);
const percent = (share, digits = 1) => (100 * share).toFixed(digits);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const state = { run: Math.max(0, data.runs.findIndex((one) => one.name === data.start)), hidden: null, threshold: 0, sort: { key: "avg_auroc", down: true } };

// Children are inserted as text, so nothing in the data can become markup.
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

// One colour and dash per detector, the same in all charts; those shown first get the most distinct colours.
const PALETTE = ["#0072B2", "#E69F00", "#009E73", "#CC3311", "#7B4FC9", "#56B4E9", "#8C6D00", "#E377C2", "#4B8B3B",
  "#A0522D", "#17A2B8", "#7F7F7F"];
const DASHES = [null, "7 3", "2 2", "9 3 2 3"];
const recommended = (place = state.run) => data.verdicts.find((verdict) => verdict.run === data.runs[place].name)?.use;
const order = [...new Set(["energy", ...data.verdicts.map((verdict) => verdict.use).filter(Boolean),
  "tood", "tood_robust_anchor", "tood_mean_shift", "msp", ...data.runs.flatMap((run) => run.detectors)])]
  .filter((name) => data.runs.some((run) => run.detectors.includes(name)));
function look(name) {
  if (name === "accuracy") return { stroke: "currentColor", dash: null };
  const place = Math.max(0, order.indexOf(name));
  return { stroke: PALETTE[place % PALETTE.length], dash: DASHES[Math.floor(place / PALETTE.length) % DASHES.length] };
}

// A term with an explanation on hover and on focus.
const term = (word) => make("span", { className: "term", tabIndex: 0, "data-tip": data.terms[word], role: "note",
  "aria-label": `${word}: ${data.terms[word]}` }, word);
for (const node of document.querySelectorAll("[data-term]")) node.replaceWith(term(node.dataset.term));
function explained(text) {
  return text.replaceAll(" %", "\u00a0%").split("`").flatMap((part, place) => (place % 2 ? [make("code", {}, part)] : withTerms(part)));
}
function withTerms(text) {
  const words = Object.keys(data.terms).sort((a, b) => b.length - a.length);
  const parts = text.split(new RegExp(`\\b(${words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})\\b`));
  const seen = new Set();
  return parts.map((part, place) => {
    if (place % 2 === 0 || seen.has(part)) return part;
    seen.add(part);
    return term(part);
  });
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
