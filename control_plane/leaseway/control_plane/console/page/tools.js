// The list of tools, and the page of one tool with its schemas and a form to call it.
import { Empty, Failure, Pager, Search, Table, html, post, query, seconds, useDebounced, useFetched, useState } from "./parts.js";

const LIMIT = 100;

export function Tools({ live }) {
  const [words, setWords] = useState("");
  const [tenant, setTenant] = useState("");
  const [offset, setOffset] = useState(0);
  const q = useDebounced(words);
  const who = useDebounced(tenant);
  const { data, error } = useFetched(`api/tools?${query({ q, tenant: who, offset, limit: LIMIT })}`, live.revisions.tools);
  return html`<h1>Tools</h1>
    <div class="tools"><${Search} label="Find a tool" value=${words} onInput=${(value) => { setOffset(0); setWords(value); }} />
      <label>Tenant <input value=${tenant} placeholder="default" onInput=${(event) => { setOffset(0); setTenant(event.target.value); }} /></label></div>
    <${Failure} error=${error} />
    ${data && !data.items.length && html`<${Empty}>${q ? "No tool matches." : "No tool can be called yet."}<//>`}
    ${data && data.items.length > 0 && html`<${Table} label="Tools" rows=${data.items} rowKey=${(row) => row.name} columns=${[
      { title: "Tool", cell: (row) => html`<a href=${`#/tool/${encodeURIComponent(row.name)}/${encodeURIComponent(who)}`}>${row.name}</a>` },
      { title: "Server", cell: (row) => html`<a href=${`#/server/${encodeURIComponent(row.server)}/`}>${row.server}</a>` },
      { title: "Kind", cell: (row) => (row.shared ? "shared" : "leased") },
      { title: "Description", cell: (row) => html`<span class="words clip">${row.title || row.description}</span>` },
    ]} /><${Pager} total=${data.total} offset=${offset} limit=${LIMIT} onOffset=${setOffset} />`}`;
}

export function ToolPage({ live, words, rights }) {
  const [name, tenant = ""] = words;
  const { data, error } = useFetched(`api/tool?${query({ name, tenant })}`, live.revisions.tools);
  if (error) return html`<h1 class="name">${name}</h1><${Failure} error=${error} />`;
  if (!data) return null;
  return html`<h1 class="name">${data.name}</h1>
    ${data.title && html`<p>${data.title}</p>`}
    <p class="words">${data.description}</p>
    <dl class="facts"><dt>Server</dt><dd><a href=${`#/server/${encodeURIComponent(data.server)}/${encodeURIComponent(tenant)}`}>${data.server}</a></dd>
      <dt>Original name</dt><dd>${data.original_name}</dd>
      <dt>Kind</dt><dd>${data.shared ? "shared" : "leased: a call here uses its own lease and releases it"}</dd></dl>
    <section><h2>Try it</h2>${rights.caller
      ? html`<${TryForm} key=${data.name} tool=${data} tenant=${tenant} />`
      : html`<${Empty}>To call tools, sign in with a credential that has the roles operator and caller.<//>`}</section>
    <section><h2>Input schema</h2><pre tabindex="0">${JSON.stringify(data.input_schema, null, 2)}</pre></section>
    ${data.output_schema && html`<section><h2>Output schema</h2><pre tabindex="0">${JSON.stringify(data.output_schema, null, 2)}</pre></section>`}`;
}

const SIMPLE = new Set(["string", "number", "integer", "boolean"]);

function fieldsOf(schema) {
  const properties = schema && typeof schema.properties === "object" && schema.properties !== null ? schema.properties : {};
  const required = new Set(Array.isArray(schema?.required) ? schema.required : []);
  return Object.entries(properties).map(([name, about]) => {
    const facts = withoutNull(about !== null && typeof about === "object" ? about : {});
    const type = SIMPLE.has(facts.type) ? facts.type : "json";
    const kind = type === "json" ? `${["array", "object"].includes(facts.type) ? `${facts.type}, ` : ""}as JSON` : type;
    const choices = Array.isArray(facts.enum) ? facts.enum : null;
    return { name, type, kind, choices, required: required.has(name), note: String(facts.description ?? ""), initial: facts.default };
  });
}

// Removes null from a property's types, as an empty field omits the argument.
function withoutNull(facts) {
  const isNull = (one) => one === "null" || one?.type === "null";
  const initial = facts.default === null ? undefined : facts.default;
  if (Array.isArray(facts.type)) {
    const types = facts.type.filter((one) => !isNull(one));
    return { ...facts, type: types.length === 1 ? types[0] : "", default: initial };
  }
  const ways = Array.isArray(facts.anyOf) ? facts.anyOf.filter((one) => !isNull(one)) : [];
  return ways.length === 1 ? { ...ways[0], ...facts, default: initial } : facts;
}

function TryForm({ tool, tenant }) {
  const fields = fieldsOf(tool.input_schema);
  const [values, setValues] = useState(() => Object.fromEntries(fields.map((field) => [field.name, toText(field.initial)])));
  const [answer, setAnswer] = useState(null);
  const [busy, setBusy] = useState(false);
  const send = (event) => {
    event.preventDefault();
    let args;
    try {
      args = gather(fields, values);
    } catch (problem) {
      setAnswer({ error: problem.message });
      return;
    }
    setBusy(true);
    setAnswer(null);
    post("api/try", { server: tool.server, tool: tool.original_name, tenant, arguments: args })
      .then(setAnswer, (problem) => setAnswer({ error: problem.message }))
      .finally(() => setBusy(false));
  };
  const set = (name) => (event) => {
    const text = event.target.value;
    setValues((old) => ({ ...old, [name]: text }));
  };
  return html`<form class="try" onSubmit=${send}>
    ${fields.map((field) => html`<label key=${field.name}><span><span class="name">${field.name}</span>${field.required ? " (required)" : ""} <span class="quiet">${field.kind}</span></span>
      <${Field} field=${field} value=${values[field.name]} onInput=${set(field.name)} />
      ${field.note && html`<span class="quiet words">${field.note}</span>`}</label>`)}
    ${!fields.length && html`<p class="quiet">The tool has no arguments.</p>`}
    <button class="primary" disabled=${busy}>${busy ? "Calling …" : "Call"}</button>
    <div aria-live="polite">${answer && html`<${Answer} answer=${answer} />`}</div>
  </form>`;
}

function Field({ field, value, onInput }) {
  if (field.choices || field.type === "boolean") {
    const choices = field.choices ?? [true, false];
    return html`<select value=${value} onChange=${onInput} required=${field.required}>
      <option value=""></option>${choices.map((choice) => html`<option value=${toText(choice)}>${toText(choice)}</option>`)}</select>`;
  }
  if (field.type === "json") {
    return html`<textarea rows="3" value=${value} onInput=${onInput} required=${field.required} placeholder="JSON"></textarea>`;
  }
  const kind = field.type === "string" ? "text" : "number";
  return html`<input type=${kind} step=${field.type === "integer" ? "1" : "any"} value=${value} onInput=${onInput} required=${field.required} />`;
}

function toText(value) {
  if (value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

function gather(fields, values) {
  const args = {};
  for (const field of fields) {
    const text = values[field.name] ?? "";
    if (text === "" && !(field.required && field.type === "string")) continue;
    if (field.choices) args[field.name] = field.choices.find((choice) => toText(choice) === text);
    else if (field.type === "string") args[field.name] = text;
    else args[field.name] = parsed(field.name, text);
  }
  return args;
}

function parsed(name, text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(`${name} is not JSON.`);
  }
  if (numbersIn(text).some(isChanged))
    throw new Error(`${name} has more digits than this page can send. Use the command line: leaseway call`);
  return value;
}

function numbersIn(json) {
  return json.replace(/"(?:\\.|[^"\\])*"/g, "").match(/-?\d[\d.eE+-]*/g) ?? [];
}

// JavaScript rounds long integers and knows no larger numbers than doubles: the tool would get another one.
function isChanged(digits) {
  const value = Number(digits);
  return /^-?\d+$/.test(digits) ? !Number.isSafeInteger(value) : !Number.isFinite(value);
}

function Answer({ answer }) {
  if (answer.error) return html`<p class="failure words" role="alert">${answer.error}</p>`;
  const texts = (answer.result.content ?? []).map((part) => part.text).filter((text) => typeof text === "string" && text !== "");
  return html`<p>${answer.is_error ? "The tool returned an error" : "Done"} in ${seconds(answer.seconds)} on ${answer.worker}.</p>
    ${texts.map((text) => html`<pre class=${answer.is_error ? "failure" : ""} tabindex="0">${text}</pre>`)}
    <details open=${!texts.length}><summary>Response as JSON</summary><pre tabindex="0">${JSON.stringify(answer.result, null, 2)}</pre></details>`;
}
