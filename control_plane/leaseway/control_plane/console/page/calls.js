// Calls that the workers have recorded, and the phases of one call.
import { Badge, Empty, Failure, WhatToDo, clock, html, query, seconds, useEffect, useFetched, useState } from "./parts.js";

const SELECTIONS = ["recent", "failed", "slow"];

export function Calls({ words, runbook }) {
  const [selection = "recent", server = ""] = words;
  const [tick, setTick] = useState(0);
  const [open, setOpen] = useState("");
  // An open call stays in the list: on a busy system a newer list would not have it.
  useEffect(() => {
    if (open) return undefined;
    const timer = setInterval(() => document.hidden || setTick((old) => old + 1), 3000);
    return () => clearInterval(timer);
  }, [open]);
  const { data, error } = useFetched(`api/calls?${query({ select: selection, server, limit: 60 })}`, tick);
  return html`<h1>Calls</h1>
    <nav class="tabs" aria-label="Which calls">${SELECTIONS.map((one) => html`<a href=${`#/calls/${one}/${encodeURIComponent(server)}`}
      aria-current=${one === selection ? "page" : null}>${one}</a>`)}
      ${server && html`<span class="quiet">of ${server} (<a href=${`#/calls/${selection}/`}>all</a>)</span>`}</nav>
    <${Failure} error=${error} />
    ${data?.silent.length > 0 && html`<p class="quiet">No answer from ${data.silent.join(", ")}.</p>`}
    ${data && !data.items.length && html`<${Empty}>The workers have recorded no such call.<//>`}
    <ul class="calls">${(data?.items ?? []).map((call) => html`<li key=${call.id}>
      <button class="plain row" aria-expanded=${open === call.id} onClick=${() => setOpen(open === call.id ? "" : call.id)}>
        <time>${clock(call.started_at)}</time>
        <span class="name">${call.server}:${call.tool || call.method}</span>
        <${Badge} text=${call.outcome} tone=${call.outcome === "ok" ? "good" : call.outcome === "tool_error" ? "warn" : "bad"} />
        <span class="numeric">${seconds(call.duration)}</span>
      </button>
      ${open === call.id && html`<${Waterfall} call=${call} runbook=${runbook} />`}</li>`)}</ul>`;
}

export function Waterfall({ call, runbook }) {
  const whole = Math.max(call.duration, 1e-9);
  return html`<div class="waterfall">
    ${call.message && html`<p class="words">${call.message}</p>`}
    <ol aria-label="Phases of the call">${call.phases.map((phase) => html`<li>
      <span class="phase">${phase.name}</span>
      <span class="track"><span class="bar" style=${{ left: `${(100 * phase.offset) / whole}%`, width: `${Math.max(0.4, (100 * phase.duration) / whole)}%` }}></span></span>
      <span class="numeric">${seconds(phase.duration)}</span></li>`)}</ol>
    <dl class="facts"><dt>Call</dt><dd>${call.id}</dd><dt>Trace</dt><dd>${call.trace_id || "none"}</dd>
      <dt>Worker</dt><dd>${call.worker}</dd><dt>Instance</dt><dd>${call.instance_id || "none"}</dd>
      <dt>Tenant</dt><dd>${call.tenant}</dd><dt>Session</dt><dd>${call.session || "–"}</dd></dl>
    <${WhatToDo} reason=${call.outcome} runbook=${runbook} /></div>`;
}
