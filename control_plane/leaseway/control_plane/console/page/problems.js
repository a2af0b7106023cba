// Open problems with advice, and the history of events.
import { Badge, Empty, EventList, Failure, Search, WhatToDo, ago, html, query, useDebounced, useFetched, useState } from "./parts.js";

export function Problems({ live, runbook, now }) {
  const [words, setWords] = useState("");
  const q = useDebounced(words);
  const { data, error } = useFetched(`api/problems?${query({ q })}`, live.revisions.problems);
  return html`<h1>Problems</h1>
    <div class="tools"><${Search} label="Find a problem" value=${words} onInput=${setWords} />
      ${data && html`<span class="quiet">${data.total} open${data.items.length < data.total ? `, ${data.items.length} shown` : ""}</span>`}</div>
    <${Failure} error=${error} />
    ${data && !data.items.length && html`<${Empty}>${q ? "No problem matches." : "No problem is open."}<//>`}
    <ul class="cards">${(data?.items ?? []).map((problem) => html`<li key=${problem.key} class=${problem.severity}>
      <${Badge} text=${problem.severity} /> <code>${problem.reason}</code>
      ${problem.server && html` <a href=${`#/server/${encodeURIComponent(problem.server)}/${encodeURIComponent(problem.tenant)}`}>${problem.server}</a>`}
      ${problem.worker && html` <span class="quiet">on ${problem.worker}</span>`}
      <span class="quiet"> · since ${ago(problem.first_seen, now)}${problem.count > 1 ? `, seen ${problem.count} times` : ""}</span>
      <p class="words">${problem.message}</p>
      <${WhatToDo} reason=${problem.reason} runbook=${runbook} /></li>`)}</ul>`;
}

export function History({ live, words }) {
  const [kind, setKind] = useState(words[0] ?? "reload");
  const newest = `${live.opened}/${live.events.find((event) => !kind || event.kind === kind)?.number}`;
  const { data, error } = useFetched(`api/events?${query({ kind, last: 300 })}`, newest);
  return html`<h1>History</h1>
    <div class="tools"><label>Kind <select value=${kind} onChange=${(event) => setKind(event.target.value)}>
      <option value="">all</option>${(live.overview?.event_kinds ?? []).map((one) => html`<option value=${one}>${one}</option>`)}</select></label></div>
    <${Failure} error=${error} />
    ${data && html`<${EventList} events=${data.items} label="Events, newest first" />`}`;
}
