// The list of servers, and the page of one server with its instances, tools, problems, logs and events.
import { Badge, Empty, EventList, Failure, Pager, Search, Table, WhatToDo, clock, get, html, loadColumns, post, query, useDebounced, useFetched, useState } from "./parts.js";

const LIMIT = 100;

export function serverPath(server) {
  return `#/server/${encodeURIComponent(server.id)}/${encodeURIComponent(server.tenant)}`;
}

export function Servers({ live }) {
  const [words, setWords] = useState("");
  const [state, setState] = useState("");
  const [offset, setOffset] = useState(0);
  const q = useDebounced(words);
  const { data, error } = useFetched(`api/servers?${query({ q, state, offset, limit: LIMIT })}`, live.revisions.servers);
  const from = (set) => (value) => {
    setOffset(0);
    set(value);
  };
  return html`<h1>Servers</h1>
    <div class="tools"><${Search} label="Find a server" value=${words} onInput=${from(setWords)} />
      <label>State <select value=${state} onChange=${(event) => from(setState)(event.target.value)}><option value="">any</option>${(live.overview?.servers.states ?? []).map(
        (one) => html`<option value=${one.name} title=${one.meaning}>${one.name}</option>`)}</select></label></div>
    <${Failure} error=${error} />
    ${data && !data.items.length && html`<${Empty}>${q || state ? "No server matches." : "No server is configured. Add one under `servers:` in the configuration."}<//>`}
    ${data && data.items.length > 0 && html`<${Table} label="Servers" rows=${data.items} rowKey=${(row) => `${row.id}\n${row.tenant}`} columns=${[
      { title: "Server", cell: (row) => html`<a href=${serverPath(row)}>${row.id}</a>${row.tenant && html` <span class="quiet">for ${row.tenant}</span>`}` },
      { title: "State", cell: (row) => html`<span title=${row.meaning}><${Badge} text=${row.state} tone=${row.tone} /></span>` },
      { title: "Kind", cell: (row) => `${row.shared ? "shared" : "leased"}, ${row.transport}` },
      { title: "Tools", numeric: true, cell: (row) => row.tools },
      { title: "Instances", cell: (row) => row.instances_text || "–" },
      ...loadColumns((row) => live.traffic.rows.find((one) => one.server === row.id)),
      { title: "Problem", cell: (row) => html`<span class="words clip">${row.problem}</span>` },
    ]} /><${Pager} total=${data.total} offset=${offset} limit=${LIMIT} onOffset=${setOffset} />`}`;
}

export function ServerPage({ live, words, rights, runbook }) {
  const [id, tenant = ""] = words;
  const path = `api/server?${query({ id, tenant })}`;
  const { data, error } = useFetched(path, `${live.revisions.servers}/${live.revisions.problems}`);
  const [log, setLog] = useState(null);
  if (error) return html`<h1 class="name">${id}</h1><${Failure} error=${error} />`;
  if (!data) return null;
  const readLog = () => get(`api/logs?${query({ id, tenant })}`).then(setLog, (problem) => setLog({ error: problem.message, instances: [] }));
  return html`<h1><span class="name">${data.id}</span> <${Badge} text=${data.state} tone=${data.tone} /></h1>
    ${data.description && html`<p class="words">${data.description}</p>`}
    ${data.problem && html`<p class="failure words">${data.problem}</p>`}
    <dl class="facts">
      <dt>Kind</dt><dd>${data.shared ? "shared by all callers" : "leased, one client for each session"}, ${data.transport}</dd>
      <dt>Tenant</dt><dd>${data.tenant || "all"}</dd>
      <dt>Workers</dt><dd>${data.workers.join(", ") || "none"}</dd>
      <dt>Protocol</dt><dd>${data.protocol_version || "–"}</dd>
      ${data.failures > 0 && html`<dt>Failed starts</dt><dd>${data.failures} in a row${data.next_try_at ? `, next try at ${clock(data.next_try_at)}` : ""}</dd>`}
    </dl>
    ${data.login && rights.operator && html`<${Login} id=${id} tenant=${tenant} forUsers=${data.login === "user"} />`}
    ${data.problems.length > 0 && html`<section><h2>Problems</h2><ul class="cards">${data.problems.map(
      (problem) => html`<li><${Badge} text=${problem.severity} /> <code>${problem.reason}</code>
        <p class="words">${problem.message}</p><${WhatToDo} reason=${problem.reason} runbook=${runbook} /></li>`)}</ul></section>`}
    <section><h2>Instances</h2>${data.instances.length
      ? html`<${Table} label="Instances" rows=${data.instances} rowKey=${(row) => `${row.worker}\n${row.id}`} columns=${[
          { title: "Instance", cell: (row) => row.id },
          { title: "Worker", cell: (row) => row.worker },
          { title: "State", cell: (row) => html`<${Badge} text=${row.state} />` },
          { title: "Role", cell: (row) => row.role },
          { title: "Process", numeric: true, cell: (row) => row.pid || "–" },
          { title: "Starts", numeric: true, cell: (row) => row.starts },
          { title: "Failures", numeric: true, cell: (row) => row.failures },
          { title: "Lease", cell: (row) => row.lease_id || "–" },
        ]} />`
      : html`<${Empty}>No instance is running.<//>`}</section>
    <section><h2>Log</h2>
      ${log ? html`<${Failure} error=${log.error} />${log.instances.map(
        (one) => html`<h3 class="name">${one.instance} on ${one.worker}</h3><pre class="log">${one.lines.join("\n") || "(empty)"}</pre>`)}${
          !log.error && !log.instances.length ? html`<${Empty}>No instance has written to stderr.<//>` : ""}`
        : html`<button onClick=${readLog}>Read the last stderr lines</button>`}</section>
    <section><h2>Tools</h2>${data.tools.length
      ? html`<ul class="plain">${data.tools.map((tool) => html`<li><a href=${`#/tool/${encodeURIComponent(tool.name)}/${encodeURIComponent(tenant)}`}>${tool.name}</a>
          <span class="quiet words"> ${tool.title || tool.description}</span></li>`)}</ul>`
      : html`<${Empty}>No tool is exposed.<//>`}</section>
    <section><h2>Calls</h2><p><a href=${`#/calls/recent/${encodeURIComponent(id)}`}>recent</a> · <a href=${`#/calls/failed/${encodeURIComponent(id)}`}>failed</a> · <a href=${`#/calls/slow/${encodeURIComponent(id)}`}>slow</a></p></section>
    <section><h2>Events</h2><${EventList} events=${data.events} label="Events of the server" /></section>`;
}

// Makes a link at which a tenant or a user logs in to a remote server: for oneself, or to pass on.
function Login({ id, tenant, forUsers }) {
  const [whose, setWhose] = useState(tenant || "default");
  const [user, setUser] = useState("");
  const [made, setMade] = useState(null);
  const make = (event) => {
    event.preventDefault();
    post("api/login", { server: id, tenant: whose, user }).then(setMade, (problem) => setMade({ error: problem.message }));
  };
  return html`<section><h2>Log in</h2><form class="tools" onSubmit=${make}>
      <label>Tenant <input value=${whose} required onInput=${(event) => setWhose(event.target.value)} /></label>
      ${forUsers && html`<label>User <input value=${user} required onInput=${(event) => setUser(event.target.value)} /></label>`}
      <button>Make a login link</button></form>
    ${made && html`<${Failure} error=${made.error} />`}
    ${made?.path && html`<p><a href=${made.path} target="_blank" rel="noreferrer">Log in</a> <span class="quiet">within 15 minutes, or give the link to that person.</span></p>`}</section>`;
}
