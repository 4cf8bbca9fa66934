"use strict";
// Verdict, tables, settings, and what happens when a control is used.

function verdicts() {
  const several = data.verdicts.length > 1;
  const boxes = data.verdicts.map((verdict, place) => {
    const sentences = verdict.sentences.map((sentence) => make("p", {}, sentence));
    return several
      ? make("details", { className: "verdict", open: place === 0 },
        make("summary", {}, `${verdict.run}: ${verdict.cause}`), ...sentences)
      : make("div", { className: "verdict" }, make("p", { className: "cause" }, `Cause: ${verdict.cause}`), ...sentences);
  });
  at("verdicts").replaceChildren(...data.overall.map((sentence) => make("p", {}, sentence)), ...boxes);
}

const NAMES = { avg_auroc: "Avg AUROC", near_auroc: "Near", far_auroc: "Far", d_avg: "D_avg", avg_fpr95: "Avg FPR@95" };
const inPaper = (metric) => data.table.some((row) => row.values[metric]?.paper != null);

function columns() {
  const several = at("table-learner").value === "*" && at("table-learner").length > 1;
  const found = [{ key: "detector", name: "Detector", text: true, of: (row) => label(row.detector) },
    ...(several ? [{ key: "learner", name: "Learner", text: true, of: (row) => label(row.learner) }] : [])];
  for (const metric of Object.keys(NAMES).filter((name) => data.table.some((row) => row.values[name]))) {
    const value = (row) => row.values[metric];
    found.push({ key: metric, name: NAMES[metric], value, of: (row) => value(row)?.mean });
    if (inPaper(metric)) {
      found.push({ key: `${metric} paper`, name: "Paper", of: (row) => value(row)?.paper });
      found.push({ key: `${metric} difference`, name: "Δ", signed: true,
        of: (row) => (value(row)?.paper == null ? undefined : value(row).mean - value(row).paper) });
    }
  }
  return found;
}

function cell(column, row) {
  if (column.value) {
    const value = column.value(row);
    if (!value) return make("td", {}, "–");
    const more = value.seeds > 1 ? make("span", { className: "dev" }, ` ±${value.std.toFixed(1)}`) : null;
    return make("td", { className: value.best ? "best" : "" }, value.mean.toFixed(1), more);
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
  const all = columns();
  const wanted = (row) => row.stream === at("table-stream").value &&
    ["*", row.learner].includes(at("table-learner").value);
  const { key, down } = state.sort;
  const column = Math.max(0, all.findIndex((one) => one.key === key));
  const rows = data.table.filter(wanted).sort((a, b) => {
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
  at("main-table").replaceChildren(
    make("thead", {}, make("tr", {}, ...heads)),
    make("tbody", {}, ...rows.map((row) => make("tr", { className: row.detector.startsWith("tood_") ? "tood" : "" },
      make("th", { scope: "row" }, label(row.detector)), ...all.slice(1).map((one) => cell(one, row))))));
  const accuracies = data.accuracy.filter(wanted);
  const compared = accuracies.some((row) => row.values.avg_cil_acc.paper != null);
  at("accuracy-table").replaceChildren(
    make("thead", {}, make("tr", {}, ...["Learner", "Average accuracy", ...(compared ? ["Paper"] : [])]
      .map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...accuracies.map((row) => make("tr", {}, make("th", { scope: "row" }, label(row.learner)),
      cell({ value: (one) => one.values.avg_cil_acc }, row),
      compared ? cell({ of: (one) => one.values.avg_cil_acc.paper }, row) : null))));
}

// ---- settings

function flat(value, prefix = "") {
  return Object.entries(value ?? {}).flatMap(([name, inner]) =>
    inner !== null && typeof inner === "object" && !Array.isArray(inner)
      ? flat(inner, `${prefix}${name}.`)
      : [[prefix + name, Array.isArray(inner) ? inner.join(", ") : String(inner)]]);
}

function settings() {
  at("settings-list").replaceChildren(...data.runs.map((one) => {
    const commands = [one.config ? `tood run config.yaml --out ${one.folder}    # the file below` : null,
      `tood audit ${one.folder}`, `tood report ${one.folder}`].filter(Boolean).join("\n");
    const pairs = [...flat(one.settings), ...flat(one.report, "report.")];
    return make("details", { className: "run", open: data.runs.length === 1 }, make("summary", {}, one.name),
      make("dl", {}, ...pairs.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]),
        ...one.tasks.slice(0, 20).flatMap((task, place) => [make("dt", {}, `task ${place}`), make("dd", {}, task.join(", "))])),
      one.tasks.length > 20 ? make("p", { className: "note" }, `and ${one.tasks.length - 20} more tasks`) : null,
      make("pre", {}, commands), one.config ? make("pre", {}, one.config) : null);
  }));
  at("made-by").textContent = `Made by tood ${data.version}. Charts: Observable Plot 0.6.17 and D3 7.9.2.`;
}

// ---- everything together

function chooseRun() {
  state.run = +at("run").value;
  const { detectors, metrics, sets, steps } = run();
  const usual = ["energy", "msp", "tood_robust_anchor", "tood_mean_shift", "tood_joint", "mds", "vim", "knn", "accuracy"];
  state.hidden ??= new Set(data.runs.flatMap((one) => one.detectors).filter((name) => !usual.includes(name)));
  const groups = [...new Set(Object.values(sets))];
  options(at("metric"), Object.keys(metrics[detectors[0]]).map((name) => [name, METRICS[name]]));
  options(at("ood-set"), [...(groups.length > 1 ? [["*", "near and far alike"]] : []),
    ...groups.map((group) => [`group:${group}`, `${group}-OOD`]),
    ...Object.keys(sets).filter((name) => name !== sets[name]).map((name) => [`set:${name}`, `${name} (${sets[name]})`])]);
  options(at("task"), [["*", "mean of tasks seen"], ...d3.range(steps).map((task) => [task, `task ${task}`])]);
  const named = detectors.map((name) => [name, label(name)]);
  options(at("map-left"), named, at("map-left").value || "energy");
  options(at("map-right"), named, at("map-right").value || "tood_robust_anchor");
  chips();
  trajectories();
  scorePanel();
}

const streams = [...new Set(data.table.map((row) => row.stream))];
options(at("table-stream"), streams.map((name) => [name, name]));
const learnerOptions = () => {
  const names = [...new Set(data.table.filter((row) => row.stream === at("table-stream").value).map((row) => row.learner))];
  options(at("table-learner"), [["*", "all"], ...(names.length > 1 ? names : []).map((name) => [name, label(name)])],
    names.length > 1 ? names[0] : "*");
};
learnerOptions();
at("paper-note").hidden = !Object.keys(NAMES).some(inPaper);
at("paper-note").append(" ", data.paper_note);
options(at("run"), data.runs.map((one, place) => [place, one.name]));
for (const [id, act] of Object.entries({ run: chooseRun, metric: trajectories, "ood-set": trajectories, task: trajectories,
  "map-left": maps, "map-right": maps, "score-detector": chooseRecall, "score-task": scores, "table-learner": mainTable }))
  at(id).addEventListener("change", act);
at("table-stream").addEventListener("change", () => { learnerOptions(); mainTable(); });
at("step").addEventListener("input", scores);
at("threshold").addEventListener("input", () => { state.threshold = +at("threshold").value; scores(); });
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
