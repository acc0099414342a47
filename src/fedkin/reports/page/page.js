// What runs in the browser: charts are drawn from their specifications, and boxes and selections set their parameters.
const page = JSON.parse(document.getElementById("page-data").textContent);
const views = new Map();
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const LARGE = 1500; // with more rows a canvas is faster than SVG

// Columns as rows; texts are places in a list of different ones.
function rows(columns) {
  const names = Object.keys(columns);
  const values = names.map((name) => {
    const column = columns[name];
    return Array.isArray(column) ? column : column.codes.map((code) => column.of[code]);
  });
  const count = values.length ? values[0].length : 0;
  return Array.from({ length: count }, (_, row) =>
    Object.fromEntries(names.map((name, place) => [name, values[place][row]])),
  );
}

function look() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: null,
    font,
    view: { stroke: null },
    axis: {
      labelColor: of("--ink"), titleColor: of("--muted"), gridColor: of("--grid"), domainColor: of("--line"),
      tickColor: of("--line"), labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelFont: font,
      titleFont: font,
    },
    rule: { color: of("--muted") },
    text: { color: of("--ink") },
  };
}

async function draw(name) {
  const { spec, data } = page.charts[name];
  const datasets = Object.fromEntries(Object.entries(data).map(([key, columns]) => [key, rows(columns)]));
  const many = Object.values(datasets).some((values) => values.length > LARGE);
  const before = views.get(name);
  const { view, finalize } = await vegaEmbed(document.getElementById(name), { ...spec, datasets }, {
    actions: false, renderer: many ? "canvas" : "svg", config: look(), ast: true,
    logLevel: 1, // errors: a chart from which all methods are hidden has no extent, which is no news
    tooltip: { theme: dark.matches ? "dark" : "light" },
  });
  if (before) before.finalize();
  views.set(name, { view, finalize });
}

function set(name, signal, value) {
  const entry = views.get(name);
  if (!entry) return;
  entry.view.signal(signal, value);
  return entry.view.runAsync();
}

function shown(box) {
  return [...box.querySelectorAll("input:checked")].map((input) => input.value);
}

function apply(box) {
  const section = box.dataset.section;
  remember();
  return Promise.all(
    Object.keys(page.charts)
      .filter((name) => name.startsWith(`${section}-`) && !name.endsWith("-kin"))
      .map((name) => set(name, "shown", shown(box))),
  );
}

// The choices of the reader survive the reloads of a page that is watched.
const KEY = `fedkin ${document.title}`;
function remember() {
  if (!page.live) return;
  const hidden = [...document.querySelectorAll(".legend input:not(:checked)")].map((input) => [
    input.closest(".legend").dataset.section, input.value,
  ]);
  const chosen = [...document.querySelectorAll("select")].map((s) => [s.dataset.chart, s.dataset.signal, s.value]);
  sessionStorage.setItem(KEY, JSON.stringify({ hidden, chosen }));
}
function recall() {
  const kept = page.live && JSON.parse(sessionStorage.getItem(KEY) || "null");
  if (!kept) return;
  for (const input of document.querySelectorAll(".legend input")) {
    const section = input.closest(".legend").dataset.section;
    if (kept.hidden.some(([where, label]) => where === section && label === input.value)) input.checked = false;
  }
  for (const select of document.querySelectorAll("select")) {
    const found = kept.chosen.find(([c, s]) => c === select.dataset.chart && s === select.dataset.signal);
    if (found && [...select.options].some((option) => option.value === found[2])) select.value = found[2];
  }
}

async function everything() {
  await Promise.all(Object.keys(page.charts).map(draw));
  await Promise.all([...document.querySelectorAll(".legend")].map(apply));
  await Promise.all(
    [...document.querySelectorAll("select")].map((s) => set(s.dataset.chart, s.dataset.signal, s.value)),
  );
  document.documentElement.dataset.ready = "yes";
}

for (const box of document.querySelectorAll(".legend")) {
  box.addEventListener("change", () => apply(box));
  for (const button of box.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      for (const input of box.querySelectorAll("input")) input.checked = button.dataset.show === "all";
      apply(box);
    });
  }
}
for (const select of document.querySelectorAll("select")) {
  select.addEventListener("change", () => {
    remember();
    set(select.dataset.chart, select.dataset.signal, select.value);
  });
}
dark.addEventListener("change", everything);
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
window.fedkinViews = views;

recall();
await everything();

if (page.live) {
  const version = document.documentElement.dataset.version;
  const live = document.getElementById("live");
  const ask = async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      const { version: now } = await answer.json();
      live.classList.remove("gone");
      if (now !== version) location.reload();
    } catch {
      live.textContent = "The server has ended; this page shows what it last knew.";
    }
  };
  setInterval(ask, 2000);
}
