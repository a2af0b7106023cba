// The overview: the state of the system in numbers.
import { Badge, Empty, EventList, Spark, Table, ago, html, loadColumns, number, seconds } from "./parts.js";

export function Overview({ live, overview, now }) {
  const verdict = judge(overview);
  return html`<h1 class=${`verdict ${verdict.tone}`}>${verdict.text}</h1>
    ${verdict.reasons.length > 0 && html`<ul class="why">${verdict.reasons.map(
      (reason) => html`<li><a href=${reason.at}>${reason.text}</a></li>`)}</ul>`}
    <ul class="tiles" aria-label="In numbers">
      <${Tile} title="Servers" at="#/servers" value=${`${overview.servers.up} / ${overview.servers.total}`}
        note=${states(overview.servers)} />
      <${Tile} title="Workers" at="#/workers" value=${overview.workers.connected}
        note=${[overview.workers.draining && `${overview.workers.draining} draining`, overview.workers.lost && `${overview.workers.lost} lost`].filter(Boolean).join(", ") || "connected"} />
      <${Tile} title="Leases" at="#/leases" value=${number(overview.leases.held)}
        note=${`of ${number(overview.leases.capacity)}${overview.leases.waiting ? `, ${overview.leases.waiting} wait` : ""}`} />
      <${Tile} title="Problems" at="#/problems" value=${overview.problems.error + overview.problems.warning}
        note=${`errors ${overview.problems.error}, warnings ${overview.problems.warning}`} />
      <${Tile} title="Configuration" at="#/history" value=${ago(overview.config_loaded_at, now)} note=${`registry ${overview.registry_version}`} />
    </ul>
    <section><h2>Calls now</h2><${TrafficTable} traffic=${live.traffic} limit=${12} /></section>
    ${overview.failed.length > 0 && html`<section><h2>Servers that need attention</h2><ul class="cards">${overview.failed.map(
      (server) => html`<li><a href=${`#/server/${encodeURIComponent(server.id)}/${encodeURIComponent(server.tenant)}`}>${server.id}</a> <${Badge} text=${server.state} tone=${server.tone} /><p class="words">${server.problem || server.meaning}</p></li>`)}</ul></section>`}
    ${overview.last_reload && html`<section><h2>Last reload</h2><${EventList} events=${[overview.last_reload]} label="Last reload" /></section>`}
    <section><h2>Newest events</h2><${EventList} events=${live.events.slice(0, 12)} label="Newest events" /></section>`;
}

function judge(overview) {
  if (overview.follows) return { tone: "warn", text: "Standby", reasons: [{ text: "Another control plane leads: its console shows the system", at: "#/history" }] };
  const reasons = [];
  const add = (count, one, many, at) => count && reasons.push({ text: `${count} ${count === 1 ? one : many}`, at });
  for (const state of overview.servers.states)
    if (state.tone === "bad") add(state.count, `server is ${state.name}`, `servers are ${state.name}`, "#/servers");
  add(overview.workers.lost, "worker is lost", "workers are lost", "#/workers");
  add(overview.problems.error, "error is open", "errors are open", "#/problems");
  if (!overview.workers.connected) reasons.unshift({ text: "No worker is connected: tools cannot be called", at: "#/workers" });
  if (overview.last_reload?.severity === "error") reasons.unshift({ text: "The newest configuration has errors; the previous one stays in effect", at: "#/history" });
  if (reasons.length) return { tone: "bad", text: "Action needed", reasons };
  if (!overview.servers.total) return { tone: "good", text: "No server is configured yet", reasons: [{ text: "Add one under `servers:` in the configuration", at: "#/servers" }] };
  if (overview.servers.up < overview.servers.total || !overview.ready) return { tone: "warn", text: "Starting", reasons };
  return { tone: "good", text: "Everything works", reasons };
}

function states(servers) {
  const words = servers.states.filter((state) => state.count && state.tone !== "good").map((state) => `${state.count} ${state.name}`);
  return words.join(", ") || "ready";
}

function Tile({ title, value, note, at }) {
  return html`<li><a class="tile" href=${at}><span class="title">${title}</span><strong>${value}</strong><span class="note">${note}</span></a></li>`;
}

export function TrafficTable({ traffic, limit }) {
  const rows = traffic.rows.slice(0, limit);
  const notes = traffic.silent.length ? html`<p class="quiet">No answer from ${traffic.silent.join(", ")}.</p>` : null;
  if (!rows.length) return html`<${Empty}>No calls since the workers started.<//>${notes}`;
  return html`<${Table} label="Calls by server" rowKey=${(row) => row.server} rows=${rows} columns=${[
    { title: "Server", cell: (row) => html`<a href=${`#/server/${encodeURIComponent(row.server)}/`}>${row.server}</a>` },
    { title: "Calls/s", numeric: true, cell: (row) => row.calls.toFixed(1) },
    { title: "Errors/s", numeric: true, cell: (row) => html`<span class=${row.failed ? "bad" : ""}>${row.failed.toFixed(1)}</span>` },
    { title: "Median", numeric: true, cell: (row) => (row.p50 === null ? "–" : seconds(row.p50)) },
    { title: "95th percentile", numeric: true, cell: (row) => (row.p95 === null ? "–" : seconds(row.p95)) },
    { title: "Total", numeric: true, cell: (row) => number(row.total) },
    ...loadColumns((row) => row),
    { title: "Recent rate", cell: (row) => html`<${Spark} values=${row.history} label=${`Calls a second of ${row.server}`} />` },
  ]} />${notes}`;
}
