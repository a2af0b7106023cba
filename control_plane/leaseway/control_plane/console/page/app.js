// The application: routing, live updates, sign-in and the frame around all views.
import { render } from "./vendor/preact-htm.js";
import { Failure, ago, get, html, post, useEffect, useRef, useState } from "./parts.js";
import { Approvals } from "./approvals.js";
import { Calls } from "./calls.js";
import { Leases, Workers } from "./leases.js";
import { Overview } from "./overview.js";
import { History, Problems } from "./problems.js";
import { ServerPage, Servers } from "./servers.js";
import { ToolPage, Tools } from "./tools.js";

const SAMPLES = 60;
const FORGET = 120; // seconds without a message about a worker's server
const SILENT = 20000; // ms; the control plane sends a heartbeat every 5 seconds
const NO_LOAD = { in_flight: 0, waiting: 0, oldest_wait: null };
const NO_RIGHTS = { operator: false, caller: false };

const VIEWS = [
  ["", "Overview", Overview],
  ["servers", "Servers", Servers],
  ["tools", "Tools", Tools],
  ["leases", "Leases", Leases],
  ["workers", "Workers", Workers],
  ["calls", "Calls", Calls],
  ["approvals", "Approvals", Approvals],
  ["problems", "Problems", Problems],
  ["history", "History", History],
];
const PAGES = [["server", "servers", ServerPage], ["tool", "tools", ToolPage]];

function useRoute() {
  const now = () => location.hash.replace(/^#\/?/, "");
  const [route, setRoute] = useState(now());
  useEffect(() => {
    const onHashChange = () => setRoute(now());
    addEventListener("hashchange", onHashChange);
    return () => removeEventListener("hashchange", onHashChange);
  }, []);
  const shown = useRef(route);
  useEffect(() => { // when the new view is there
    if (shown.current !== route) document.querySelector("main")?.focus();
    shown.current = route;
  }, [route]);
  const [name, ...rest] = route.split("/");
  return { name, words: rest.map(decoded) };
}

function decoded(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word; // written by hand
  }
}

// Receives live updates. The stream is reopened after errors, after a restart of the control plane
// and when it is silent (a process that hangs, a network that is gone, a computer that slept); until
// then the page shows how old its data is.
function useLive(onRights, onRefused) {
  const [live, setLive] = useState({ overview: null, revisions: {}, opened: 0, events: [], connected: false });
  const [traffic, setTraffic] = useState({ rows: [], silent: [], workers: {} });
  const before = useRef(new Map());
  useEffect(() => {
    let source = null;
    let timer = 0;
    let heard = 0;
    let opened = 0;
    const listen = (kind, take) => source.addEventListener(kind, (message) => {
      heard = Date.now();
      take(JSON.parse(message.data));
    });
    const open = () => {
      heard = Date.now();
      source = new EventSource("api/live");
      opened += 1;
      listen("state", (content) => {
        const { overview } = content;
        // Another control plane may have the same numbers for other content.
        const revisions = Object.fromEntries(Object.entries(content.revisions).map(([what, number]) => [what, `${opened}/${number}`]));
        setLive((old) => ({ ...old, overview, revisions, opened, connected: true, clockGap: overview.now - Date.now() / 1000 }));
      });
      listen("events", (fresh) => {
        setLive((old) => {
          const known = new Set(old.events.map((event) => event.number));
          const added = fresh.filter((event) => !known.has(event.number)).reverse();
          return { ...old, events: [...added, ...old.events].slice(0, 200) };
        });
      });
      listen("heartbeat", () => {});
      listen("traffic", (content) => setTraffic(rates(content, before.current)));
      source.onerror = lose;
    };
    const lose = () => {
      setLive((old) => ({ ...old, connected: false }));
      source.close();
      source = null;
      timer = setTimeout(retry, 1000);
    };
    const retry = () =>
      get("api/session", AbortSignal.timeout(SILENT)).then((rights) => {
        onRights(rights);
        open();
      }, (error) => {
        if (error.status === 401) onRefused("The session has ended. Sign in again.");
        else if (error.status === 403) onRefused(error.message);
        else timer = setTimeout(retry, 1000);
      });
    open();
    const watch = setInterval(() => source && Date.now() - heard > SILENT && lose(), 1000);
    return () => {
      clearInterval(watch);
      clearTimeout(timer);
      source?.close();
    };
  }, []);
  return { ...live, traffic };
}

// Converts call counts since the workers' start into rates since the last message.
function rates(message, before) {
  const servers = new Map();
  const workers = {};
  for (const one of message.traffic) {
    const key = `${one.worker}\n${one.incarnation}\n${one.server}`;
    const was = before.get(key);
    const seen = before.get(`server\n${one.server}`) ?? { history: [] };
    const row = servers.get(one.server) ??
      { server: one.server, calls: 0, failed: 0, seconds: 0, buckets: [], total: 0, history: seen.history, ...NO_LOAD };
    row.total += one.calls;
    addLoad(row, one);
    addLoad(workers[one.worker] ??= { ...NO_LOAD }, one);
    if (was && message.time > was.time && one.calls >= was.calls) { // fewer: the worker has forgotten a removed server
      const passed = message.time - was.time;
      row.calls += (one.calls - was.calls) / passed;
      row.failed += (one.failed - was.failed) / passed;
      one.buckets.forEach((count, at) => {
        row.buckets[at] = (row.buckets[at] ?? 0) + count - was.buckets[at];
      });
    }
    servers.set(one.server, row);
    before.set(key, { ...one, time: message.time });
  }
  for (const row of servers.values()) {
    row.history = [...row.history, row.calls].slice(-SAMPLES);
    row.p50 = quantile(row.buckets, 0.5);
    row.p95 = quantile(row.buckets, 0.95);
    before.set(`server\n${row.server}`, { history: row.history, time: message.time });
  }
  // What ended worker runs and removed servers have counted must not pile up in a page that stays open.
  for (const [key, { time }] of before) if (Math.abs(message.time - time) > FORGET) before.delete(key);
  return { rows: [...servers.values()].sort((a, b) => b.calls - a.calls || b.total - a.total), silent: message.silent, workers };
}

function addLoad(load, one) {
  load.in_flight += one.in_flight;
  load.waiting += one.waiting;
  if (one.oldest_wait !== null) load.oldest_wait = Math.max(load.oldest_wait ?? 0, one.oldest_wait);
}

// Returns the upper bound in seconds of the bucket (powers of two, in ms) of a quantile.
function quantile(buckets, share) {
  const all = buckets.reduce((sum, count) => sum + count, 0);
  let below = 0;
  for (let at = 0; at < buckets.length && all > 0; at += 1) {
    below += buckets[at];
    if (below >= all * share) return 2 ** at / 1000;
  }
  return null;
}

function Login({ reason, onDone }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState(reason);
  const send = (event) => {
    event.preventDefault();
    post("api/session", { key }).then(onDone, (problem) => setError(problem.message));
  };
  return html`<main class="login"><form onSubmit=${send}>
    <h1>Leaseway</h1>
    <label>Credential <input type="password" autocomplete="current-password" value=${key}
      onInput=${(event) => setKey(event.target.value)} autofocus required /></label>
    <p class="quiet">An API key or a token with the role operator or viewer, or the shared key (LEASEWAY_KEY).</p>
    <${Failure} error=${error} />
    <button class="primary">Sign in</button>
  </form></main>`;
}

function Shell({ rights, onRights, onRefused }) {
  const route = useRoute();
  const live = useLive(onRights, onRefused);
  const [runbook, setRunbook] = useState({});
  const [tick, setTick] = useState(0);
  useEffect(() => {
    get("api/runbook").then(setRunbook, () => {});
    const timer = setInterval(() => setTick((old) => old + 1), 5000);
    return () => clearInterval(timer);
  }, []);
  const now = Date.now() / 1000 + (live.clockGap ?? 0);
  const page = PAGES.find(([name]) => name === route.name);
  const View = (page ?? VIEWS.find(([name]) => name === route.name))?.[2] ?? Overview;
  const here = page?.[1] ?? route.name;
  const signOut = () => post("api/session", {}, "DELETE").then(() => onRefused(""), () => {});
  const { overview } = live;
  const counts = { problems: overview?.problems.error, servers: overview?.servers.attention };
  return html`<a class="skip" href="#content" onClick=${(event) => {
      event.preventDefault();
      document.querySelector("main")?.focus();
    }}>Skip to the content</a>
    <header>
      <a class="brand" href="#/"><img src="icon.svg" alt="" width="22" height="22" /> Leaseway</a>
      ${overview && html`<span class="where">${overview.package_version}</span>`}
      ${!rights.operator && html`<span class="where" title="This credential is read-only.">view only</span>`}
      <${Pulse} live=${live} now=${now} />
      ${rights.signed_in && html`<button onClick=${signOut}>Sign out</button>`}
    </header>
    <nav class="views" aria-label="Views"><ul>${VIEWS.map(
      ([name, title]) => html`<li><a href=${`#/${name}`} aria-current=${name === here ? "page" : null}>${title}${
        counts[name] ? html` <span class="count" aria-label=${`${counts[name]} failed`}>${counts[name]}</span>` : ""}</a></li>`,
    )}</ul></nav>
    <main id="content" tabindex="-1" key=${route.name + route.words.join("/")} data-tick=${tick % 2}>${
      overview
        ? html`<${View} live=${live} overview=${overview} rights=${rights} words=${route.words} runbook=${runbook} now=${now} />`
        : html`<p class="empty" role="status">Loading …</p>`
    }</main>`;
}

function Pulse({ live, now }) {
  if (live.connected) return html`<span class="pulse good" role="status"><i></i> live</span>`;
  if (!live.overview) return html`<span class="pulse" role="status"><i></i> connecting</span>`;
  return html`<span class="pulse bad" role="status"><i></i> disconnected; data from ${ago(live.overview.now, now)}</span>`;
}

function App() {
  const [known, setKnown] = useState(null);
  const [reason, setReason] = useState("");
  const refuse = (why) => {
    setReason(why);
    setKnown(false);
  };
  useEffect(() => {
    get("api/session").then(setKnown, (error) => {
      if (error.status === 401) refuse("");
      else if (error.status === 403) refuse(error.message);
      else setKnown(NO_RIGHTS);
    });
  }, []);
  if (known === null) return null;
  return known
    ? html`<${Shell} rights=${known} onRights=${setKnown} onRefused=${refuse} />`
    : html`<${Login} reason=${reason} onDone=${setKnown} />`;
}

render(html`<${App} />`, document.getElementById("page"));
