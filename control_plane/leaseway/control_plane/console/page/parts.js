// Components and helpers of all views. Text from servers and callers is only rendered as text nodes.
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

export { html, useEffect, useRef, useState };

export async function get(path, signal) {
  const answer = await fetch(path, { headers: { Accept: "application/json" }, signal });
  return read(answer);
}

export async function post(path, body, method = "POST") {
  const answer = await fetch(path, {
    method,
    headers: { "Content-Type": "application/json", "X-Leaseway-Console": "1" },
    body: JSON.stringify(body),
  });
  return read(answer);
}

async function read(answer) {
  let body = null;
  try {
    body = await answer.json();
  } catch {
    // A proxy's page or a broken connection; the status is reported below.
  }
  if (answer.ok && body !== null) return body;
  const error = new Error(body?.error ?? `The control plane answered ${answer.status}.`);
  error.status = answer.status;
  throw error;
}

// Fetches a path again when it or a revision changes; keeps the old data until then.
export function useFetched(path, revision) {
  const [state, setState] = useState({ path: "", data: null, error: "" });
  const newest = useRef(0);
  useEffect(() => {
    if (!path) return;
    const mine = ++newest.current;
    get(path).then(
      (data) => mine === newest.current && setState({ path, data, error: "" }),
      (error) => mine === newest.current && setState((old) => ({ ...old, path, error: error.message })),
    );
  }, [path, revision]);
  return state;
}

export function useDebounced(value, milliseconds = 200) {
  const [late, setLate] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setLate(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value]);
  return late;
}

export const number = (value) => value.toLocaleString("en");

export function seconds(value) {
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.1 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

export function ago(unix, now) {
  const passed = Math.max(0, Math.round(now - unix));
  return unix ? `${passed < 60 ? `${passed} s` : seconds(passed)} ago` : "never";
}

export function clock(unix) {
  const at = new Date(unix * 1000);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("en-CA")} `;
  return day + at.toLocaleTimeString("en-GB");
}

// States of servers come with their tone.
const TONES = {
  ready: "good", connected: "good", ok: "good", info: "", idle: "",
  warning: "warn", draining: "warn", tool_error: "warn", starting: "warn", queued: "warn",
  backoff: "bad", closed: "bad", lost: "bad", error: "bad", disconnected: "bad",
};

export function Badge({ text, tone }) {
  return html`<span class=${`badge ${tone ?? TONES[text] ?? ""}`}>${text}</span>`;
}

// The columns of the calls in flight; `load` returns those of a row, or undefined.
export const loadColumns = (load) => [
  { title: "In flight", numeric: true, cell: (row) => load(row)?.in_flight ?? 0 },
  { title: "Waiting", numeric: true, cell: (row) => load(row)?.waiting ?? 0 },
  { title: "Oldest wait", numeric: true, cell: (row) => ((load(row)?.oldest_wait ?? null) === null ? "–" : seconds(load(row).oldest_wait)) },
];

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

export function Failure({ error }) {
  return error ? html`<p class="failure" role="alert">${error}</p>` : null;
}

// A table that becomes a list of cards on narrow pages, where each cell shows its column's title.
export function Table({ columns, rows, label, rowKey, onSort, sort }) {
  return html`<div class="scroll" role="region" aria-label=${label} tabindex="0">
    <table>
      <caption class="hidden">${label}</caption>
      <thead><tr>${columns.map(
        (column) => html`<th scope="col" class=${column.numeric ? "numeric" : ""}
          aria-sort=${sort && sort === column.sort ? "descending" : null}>${
            column.sort && onSort
              ? html`<button class="plain" onClick=${() => onSort(column.sort)}>${column.title}${
                  sort === column.sort ? " ▾" : ""}</button>`
              : column.title
          }</th>`,
      )}</tr></thead>
      <tbody>${rows.map(
        (row) => html`<tr key=${rowKey(row)}>${columns.map(
          (column) => html`<td data-title=${column.title} class=${column.numeric ? "numeric" : ""}>${column.cell(row)}</td>`,
        )}</tr>`,
      )}</tbody>
    </table>
  </div>`;
}

export function Pager({ total, offset, limit, onOffset }) {
  if (total <= limit) return null;
  const last = Math.min(total, offset + limit);
  return html`<nav class="pager" aria-label="Pages">
    <button disabled=${offset === 0} onClick=${() => onOffset(Math.max(0, offset - limit))}>Previous</button>
    <span>${number(offset + 1)}–${number(last)} of ${number(total)}</span>
    <button disabled=${last >= total} onClick=${() => onOffset(offset + limit)}>Next</button>
  </nav>`;
}

export function Search({ value, onInput, label }) {
  return html`<input type="search" aria-label=${label} placeholder=${label} value=${value}
    onInput=${(event) => onInput(event.target.value)} />`;
}

// A button that asks for confirmation, and comes back after a failure. What replaces the element
// that has the focus gets it: else the keyboard would start at the top of the page again.
export function Confirm({ label, question, onYes }) {
  const [asked, setAsked] = useState(null);
  const [result, setResult] = useState("");
  const [failure, setFailure] = useState("");
  const [busy, setBusy] = useState(false);
  const shown = useRef(null);
  useEffect(() => {
    if (asked !== null) shown.current?.focus();
  }, [asked, result]);
  if (result) return html`<span role="status" tabindex="-1" ref=${shown}>${result}</span>`;
  if (!asked) return html`<button class="danger" ref=${shown} onClick=${() => setAsked(true)}>${label}</button>
    ${failure && html`<span class="bad" role="alert"> ${failure}</span>`}`;
  const act = () => {
    setBusy(true);
    setFailure("");
    onYes().then(
      (answer) => setResult(answer.message ?? "Done."),
      (error) => {
        setFailure(error.message);
        setAsked(false);
      },
    ).finally(() => setBusy(false));
  };
  return html`<span class="sure" role="alertdialog" aria-label=${question} tabindex="-1" ref=${shown}>${question}
    <button class="danger" disabled=${busy} onClick=${act}>Yes</button>
    <button disabled=${busy} onClick=${() => setAsked(false)}>No</button></span>`;
}

export function Spark({ values, label }) {
  if (values.length < 2) return html`<span class="quiet">…</span>`;
  const max = Math.max(...values, 1e-9);
  const step = 100 / (values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(22 - (value / max) * 20).toFixed(1)}`).join(" ");
  return html`<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${label}>
    <polyline points=${points} /></svg>`;
}

// The runbook's entry for the reason of a problem or error.
export function WhatToDo({ reason, runbook }) {
  const entry = runbook?.[reason];
  if (!entry) return null;
  return html`<details class="what"><summary>What to do</summary>
    <dl><dt>Cause</dt><dd>${coded(entry.cause)}</dd>
      <dt>Look at</dt><dd>${coded(entry.look)}</dd>
      <dt>Do</dt><dd>${coded(entry.do)}</dd></dl></details>`;
}

function coded(text) {
  return text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));
}

export function EventList({ events, label }) {
  if (!events.length) return html`<${Empty}>There are no events yet.<//>`;
  return html`<ol class="events" aria-label=${label}>${events.map(
    (event) => html`<li key=${event.number} class=${event.severity}>
      <time>${clock(event.time)}</time>
      <${Badge} text=${`${event.kind} ${event.action}`} tone=${TONES[event.severity] ?? ""} />
      <span class="words">${event.message}</span>
      ${event.details.length > 0 && html`<details><summary>${event.details.length === 1 ? "1 line" : `${event.details.length} lines`}</summary>
        <pre>${event.details.join("\n")}</pre></details>`}
    </li>`,
  )}</ol>`;
}

export function query(values) {
  const words = Object.entries(values).filter(([, value]) => value !== "" && value !== 0 && value != null);
  return new URLSearchParams(words).toString();
}
