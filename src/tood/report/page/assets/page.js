"use strict";
// Verdicts, tables, settings, and the event handlers of all controls.

const FEW = 3; // verdicts shown at first
const MANY = 12; // with more runs, the list of settings is folded

function card(verdict) {
  const lines = Object.entries(verdict.card ?? {}).flatMap(([name, text]) =>
    [make("dt", {}, name), make("dd", {}, ...explained(text))]);
  const [finding, ...others] = verdict.findings;
  return make("article", { className: "verdict" }, make("h3", {}, verdict.run),
    lines.length ? make("dl", { className: "card" }, ...lines) : null,
    finding ? make("p", { className: "finding" }, `Check: ${finding}`) : null,
    make("details", { open: !verdict.card }, make("summary", {}, "The evidence"),
      ...others.map((text) => make("p", { className: "finding" }, text)),
      ...verdict.sentences.map((text) => make("p", {}, text))));
}

function verdicts() {
  const ranked = [...data.verdicts].sort((a, b) => a.baseline - b.baseline || b.telling - a.telling);
  const rest = ranked.slice(FEW);
  at("verdicts").replaceChildren(...ranked.slice(0, FEW).map(card), rest.length
    ? make("details", { className: "more" }, make("summary", {}, `${rest.length} more`), ...rest.map(card)) : "");
}

const NAMES = { avg_auroc: "AUROC", near_auroc: "near-OOD", far_auroc: "far-OOD", d_avg: "D_avg", avg_fpr95: "FPR@95" };
const BARS = new Set(["avg_auroc", "near_auroc", "far_auroc"]);
const inPaper = (metric) => data.table.some((row) => row.values[metric]?.paper != null);

const everyone = () => at("table-learner").value === "*";

// For one learner, one column per metric; for all learners, one column per learner and the chosen metric.
function columns(rows) {
  const list = [{ key: "detector", name: "Score", text: true, of: (row) => label(row.detector) }];
  if (everyone()) {
    const metric = at("table-metric").value;
    const learners = [...new Set(rows.map((row) => row.learner))];
    const overall = (row) => (learners.every((name) => row.by[name]?.[metric]) // only means over the same learners can be compared
      ? { mean: mean(learners.map((name) => row.by[name][metric].mean)), seeds: 1 } : undefined);
    list.push({ key: "*", name: "Mean", metric, value: overall, of: (row) => overall(row)?.mean });
    for (const learner of learners) {
      const value = (row) => row.by[learner]?.[metric];
      list.push({ key: learner, name: label(learner), metric, value, of: (row) => value(row)?.mean });
    }
    return list;
  }
  for (const metric of Object.keys(NAMES).filter((name) => rows.some((row) => row.values[name]))) {
    const value = (row) => row.values[metric];
    list.push({ key: metric, name: NAMES[metric], metric, value, of: (row) => value(row)?.mean });
    if (inPaper(metric)) {
      list.push({ key: `${metric} paper`, name: "Paper", of: (row) => value(row)?.paper });
      list.push({ key: `${metric} difference`, name: "Δ", signed: true,
        of: (row) => (value(row)?.paper == null ? undefined : value(row).mean - value(row).paper) });
    }
  }
  return list;
}

function cell(column, row) {
  if (column.value) {
    const value = column.value(row);
    if (!value) return make("td", {}, "–");
    const more = value.seeds > 1 ? make("span", { className: "dev" }, ` ±${value.std.toFixed(1)}`) : null;
    const td = make("td", { className: value.best ? "best" : "" }, value.mean.toFixed(1), more);
    if (BARS.has(column.metric)) {
      td.classList.add("bar");
      td.style.setProperty("--share", `${Math.max(0, Math.min(100, 2 * (value.mean - 50)))}%`); // from chance to perfect
    }
    return td;
  }
  const figure = column.of(row);
  if (column.text) return make("td", { className: "text" }, figure);
  const sign = column.signed && figure > 0 ? "+" : "";
  return make("td", { className: "soft" }, figure == null ? "" : sign + figure.toFixed(1));
}

function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

function mainTable() {
  const stream = at("table-stream").value;
  let rows = data.table.filter((row) => row.stream === stream && (everyone() || row.learner === at("table-learner").value));
  const all = columns(rows);
  const accuracies = Object.fromEntries(data.accuracy.filter((row) => row.stream === stream)
    .map((row) => [row.learner, row.values.avg_cil_acc]));
  if (everyone()) {
    const shown = (name) => !name.endsWith("(raw logits)") || name.startsWith("energy"); // the rest: choose the learner
    const merged = d3.group(rows.filter((row) => shown(row.detector)), (row) => row.detector);
    rows = [...merged].map(([detector, own]) => ({ detector, by: Object.fromEntries(own.map((row) => [row.learner, row.values])) }));
  }
  const fallback = everyone() ? all[1]?.key : "avg_auroc";
  const key = all.some((one) => one.key === state.sort.key) ? state.sort.key : fallback;
  const down = state.sort.down;
  const column = Math.max(0, all.findIndex((one) => one.key === key));
  rows.sort((a, b) => {
    const [x, y] = [all[column].of(a), all[column].of(b)];
    return x == null || y == null ? compare(x, y) : compare(x, y) * (down ? -1 : 1);
  });
  const heads = all.map((one, place) => {
    const button = make("button", { type: "button" }, one.name + (place === column ? (down ? " ↓" : " ↑") : ""));
    button.addEventListener("click", () => {
      state.sort = { key: one.key, down: place === column ? !down : !one.text };
      mainTable();
      at("main-table").querySelectorAll("th button")[place].focus();
    });
    const sort = place === column ? { "aria-sort": down ? "descending" : "ascending" } : {};
    return make("th", { scope: "col", className: one.text ? "text" : "", ...sort }, button);
  });
  const known = everyone() ? all.slice(1).map((one) => accuracies[one.key]) : [accuracies[at("table-learner").value]];
  const paper = !everyone() && known[0]?.paper != null ? ` (paper ${known[0].paper.toFixed(1)})` : "";
  const foot = make("tr", { className: "accuracy" }, make("th", { scope: "row" }, "Accuracy"),
    ...all.slice(1).map((_, place) => make("td", {}, known[place] ? known[place].mean.toFixed(1) + paper : "")));
  at("main-table").replaceChildren(make("thead", {}, make("tr", {}, ...heads)),
    make("tbody", {}, ...rows.map((row) => make("tr", { className: row.detector === "tood" ? "tood" : "" },
      make("th", { scope: "row" }, label(row.detector)), ...all.slice(1).map((one) => cell(one, row))))),
    make("tfoot", {}, foot));
  at("table-metric").closest("label").hidden = !everyone();
}

// ---- settings

function flat(value, prefix = "") {
  return Object.entries(value ?? {}).flatMap(([name, inner]) =>
    inner !== null && typeof inner === "object" && !Array.isArray(inner)
      ? flat(inner, `${prefix}${name}.`)
      : [[prefix + name, Array.isArray(inner) ? inner.join(", ") : String(inner)]]);
}

function settings() {
  const each = data.runs.map((one) => {
    const commands = [one.config ? `tood run config.yaml --out ${one.folder}    # the file below` : null,
      `tood audit ${one.folder}`, `tood report ${one.folder}`].filter(Boolean).join("\n");
    const pairs = flat(one.settings);
    return make("details", { className: "run", open: data.runs.length === 1 }, make("summary", {}, one.name),
      make("dl", {}, ...pairs.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]),
        ...one.tasks.slice(0, 20).flatMap((task, place) => [make("dt", {}, `task ${place}`), make("dd", {}, task.join(", "))])),
      one.tasks.length > 20 ? make("p", { className: "note" }, `and ${one.tasks.length - 20} more tasks`) : null,
      make("pre", {}, commands), one.config ? make("pre", {}, one.config) : null);
  });
  at("settings-list").replaceChildren(...each.length > MANY
    ? [make("details", {}, make("summary", {}, `${each.length} runs`), ...each)] : each);
  at("made-by").textContent = `Made by tood ${data.version}. Charts: Observable Plot 0.6.17 and D3 7.9.2.`;
}

// ---- everything together

// TOOD as it is by default; the paper's variants only if it was not measured.
const ourScore = () => ["tood", "tood_robust_anchor", "tood_mean_shift"].find((name) => run().detectors.includes(name));

function tiles() {
  const shown = [["accuracy", "Accuracy"], ...["energy", ourScore()].filter((name) => run().detectors.includes(name))
    .map((name) => [name, `AUROC by ${name === "energy" ? "energy" : label(name)}`])];
  at("tiles").replaceChildren(...shown.map(([name, title]) => {
    const values = name === "accuracy" ? run().pooled_accuracy.map((share) => 100 * share)
      : series(name, "auroc", "*", "*").map((row) => row.value);
    const tile = make("div", { className: "tile" }, make("span", {}, title),
      make("strong", {}, `${values[0].toFixed(1)} → ${values.at(-1).toFixed(1)}`));
    tile.style.borderColor = look(name).stroke;
    return tile;
  }));
}

function chooseRun() {
  state.run = +at("run").value;
  const { detectors, metrics, sets, steps } = run();
  const other = recommended() !== "energy" && detectors.includes(recommended()) ? recommended() : ourScore();
  const first = ["energy", ourScore(), other, "accuracy"];
  state.hidden = new Set([...detectors].filter((name) => !first.includes(name)));
  const groups = [...new Set(Object.values(sets))];
  options(at("metric"), Object.keys(metrics[detectors[0]]).map((name) => [name, METRICS[name]]));
  options(at("ood-set"), [...(groups.length > 1 ? [["*", "near and far, equal weights"]] : []),
    ...groups.map((group) => [`group:${group}`, `${group}-OOD`]),
    ...Object.keys(sets).filter((name) => name !== sets[name]).map((name) => [`set:${name}`, `${name} (${sets[name]})`])]);
  options(at("task"), [["*", "mean of tasks seen"], ...d3.range(steps).map((task) => [task, `task ${task}`])]);
  const named = detectors.map((name) => [name, label(name)]);
  options(at("map-left"), named, at("map-left").value || "energy");
  options(at("map-right"), named, other ?? "energy");
  tiles();
  chips();
  trajectories();
  scorePanel();
}

const streams = [...new Set(data.table.map((row) => row.stream))];
options(at("table-stream"), streams.map((name) => [name, name]));
const learnerOptions = () => {
  const names = [...new Set(data.table.filter((row) => row.stream === at("table-stream").value).map((row) => row.learner))];
  options(at("table-learner"), names.length > 1 ? [["*", "side by side"], ...names.map((name) => [name, label(name)])]
    : names.map((name) => [name, label(name)]), names.length > 1 ? "*" : names[0]);
};
options(at("table-metric"), Object.keys(NAMES).filter((name) => data.table.some((row) => row.values[name]))
  .map((name) => [name, NAMES[name]]));
learnerOptions();
at("paper-note").hidden = !Object.keys(NAMES).some(inPaper);
at("paper-note").append(" ", data.paper_note);
at("track").textContent = data.track;
options(at("run"), data.runs.map((one, place) => [place, one.name]), state.run);
for (const [id, act] of Object.entries({ run: chooseRun, metric: trajectories, "ood-set": trajectories, task: trajectories,
  "map-left": maps, "map-right": maps, "score-detector": chooseRecall, "score-task": scores, "table-learner": mainTable, "table-metric": mainTable }))
  at(id).addEventListener("change", act);
at("table-stream").addEventListener("change", () => { learnerOptions(); mainTable(); });
at("step").addEventListener("input", scores);
at("threshold").addEventListener("input", () => { state.threshold = edges()[+at("threshold").value]; scores(); });
at("recall").addEventListener("click", chooseRecall);
verdicts();
mainTable();
settings();
chooseRun();
let width = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  trajectories();
  if (run().scores) scores();
}).observe(document.body);
