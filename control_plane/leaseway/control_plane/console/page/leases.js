// Leases and workers.
import { Badge, Empty, Failure, Pager, Search, Confirm, Table, html, loadColumns, number, post, query, seconds, useDebounced, useFetched, useState } from "./parts.js";

const LIMIT = 100;

export function Leases({ live, rights, words }) {
  const [text, setText] = useState(words[0] ?? "");
  const [sort, setSort] = useState("age");
  const [offset, setOffset] = useState(0);
  const q = useDebounced(text);
  const { data, error } = useFetched(`api/leases?${query({ q, sort, offset, limit: LIMIT })}`, live.revisions.leases);
  return html`<h1>Sessions and leases</h1>
    <div class="tools"><${Search} label="Find by session, server, tenant, agent, user or worker" value=${text} onInput=${(value) => { setOffset(0); setText(value); }} />
      ${data && html`<span class="quiet">${number(data.total)} leases of ${number(data.sessions)} sessions</span>`}</div>
    <${Failure} error=${error} />
    ${data && !data.items.length && html`<${Empty}>${q ? "No lease matches." : "No lease is held."}<//>`}
    ${data && data.items.length > 0 && html`<${Table} label="Leases" rows=${data.items} rowKey=${(row) => row.id} sort=${sort}
      onSort=${(name) => { setOffset(0); setSort(name); }} columns=${[
        { title: "Session", sort: "session", cell: (row) => html`<span class="name">${row.session}</span>` },
        { title: "Server", sort: "server", cell: (row) => html`<a href=${`#/server/${encodeURIComponent(row.server)}/`}>${row.server}</a>` },
        { title: "Tenant", cell: (row) => row.tenant },
        { title: "Agent", cell: (row) => row.agent || "–" },
        { title: "User", cell: (row) => row.user || row.holder || "–" },
        { title: "Worker", cell: (row) => row.worker },
        { title: "Age", numeric: true, sort: "age", cell: (row) => seconds(row.age) },
        { title: "Idle", numeric: true, cell: (row) => (row.idle === null ? "–" : row.idle === 0 ? "in use" : seconds(row.idle)) },
        ...(rights.operator ? [{ title: "", cell: (row) => html`<${Confirm} label="Revoke" question="Revoke this lease?"
          onYes=${() => post("api/revoke", { lease: row.id })} />` }] : []),
      ]} /><${Pager} total=${data.total} offset=${offset} limit=${LIMIT} onOffset=${setOffset} />`}`;
}

export function Workers({ live, rights }) {
  const { data, error } = useFetched("api/workers", live.revisions.workers);
  return html`<h1>Workers</h1><${Failure} error=${error} />
    ${data && !data.items.length && html`<${Empty}>No worker has joined. Start one: leaseway worker --control-plane ADDRESS<//>`}
    ${data && data.items.length > 0 && html`<${Table} label="Workers" rows=${data.items} rowKey=${(row) => row.id} columns=${[
      { title: "Worker", cell: (row) => row.id },
      { title: "State", cell: (row) => html`<${Badge} text=${row.state} />` },
      { title: "Address", cell: (row) => row.address },
      { title: "Leases", numeric: true, cell: (row) => html`${number(row.leases)} / ${number(row.capacity)} <meter aria-label=${`Leases of ${row.id}`} min="0" max=${Math.max(1, row.capacity)} value=${row.leases}></meter>` },
      { title: "Instances", numeric: true, cell: (row) => row.instances },
      ...loadColumns((row) => live.traffic.workers[row.id]),
      { title: "Behind", cell: (row) => (row.behind ? "yes" : "no") },
      { title: "Version", cell: (row) => row.package_version },
      { title: "Last refusal", cell: (row) => html`<span class="words clip">${row.last_error}</span>` },
      ...(rights.operator ? [{ title: "", cell: (row) => row.state === "connected" && html`<${Confirm} label="Drain" question="Let it finish its work and exit?"
        onYes=${() => post("api/drain", { worker: row.id })} />` }] : []),
    ]} />`}`;
}
