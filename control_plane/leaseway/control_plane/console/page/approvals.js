// Calls that need a person's approval. A decision is offered only beside the whole call.
import { Badge, Empty, Failure, Confirm, Table, ago, get, html, number, post, query, useFetched, useState } from "./parts.js";

const REREAD = 10; // seconds

export function Approvals({ live, now }) {
  // Events tell of changes at once. But a burst of others may displace them, and none tells that the store works again.
  const newest = live.events.find((event) => event.kind === "approval")?.number;
  const { data, error } = useFetched("api/approvals", `${live.opened}/${newest}/${Math.floor(now / REREAD)}`);
  const [opened, setOpened] = useState({});
  const [failure, setFailure] = useState("");
  const whole = (row) => (row.arguments === null ? opened[row.id] : row);
  const open = (row) => get(`api/approval?${query({ id: row.id })}`).then(
    (found) => setOpened((old) => ({ ...old, [row.id]: found })),
    (problem) => setFailure(problem.message),
  );
  const call = (row) => {
    const shown = whole(row);
    if (!shown) return html`<button onClick=${() => open(row)}>Show all ${number(row.length)} characters</button>`;
    return html`<span class="words" dir="ltr">${shown.arguments}${shown.extra && ` and beside the arguments ${shown.extra}`}</span>`;
  };
  const decide = (row, approve) => () => post("api/decide", { approval: row.id, approve });
  const canDecide = (row) => row.state === "waiting" && data.approver && whole(row);
  return html`<h1>Calls that need approval</h1><${Failure} error=${error || failure} />
    ${data && !data.approver && html`<p class="quiet">To approve or deny, sign in with a credential that has the role approver.</p>`}
    ${data && !data.items.length && html`<${Empty}>No call waits for approval.<//>`}
    ${data && data.items.length > 0 && html`<${Table} label="Approvals" rows=${data.items} rowKey=${(row) => row.id} columns=${[
      { title: "Asked", cell: (row) => ago(row.asked_at, now) },
      { title: "State", cell: (row) => html`<${Badge} text=${row.state} />` },
      { title: "Tenant", cell: (row) => row.tenant },
      { title: "Agent", cell: (row) => row.agent || "–" },
      { title: "Session", cell: (row) => row.session || "–" },
      { title: "Tool", cell: (row) => html`<span class="name">${row.server}:${row.tool}</span>` },
      { title: "Arguments", cell: call },
      { title: "Asked by", cell: (row) => row.asked_by },
      { title: "Decided by", cell: (row) => row.decided_by || "–" },
      { title: "", cell: (row) => canDecide(row) && html`<${Confirm} label="Approve"
        question="Let this call run once?" onYes=${decide(row, true)} />` },
      { title: "", cell: (row) => canDecide(row) && html`<${Confirm} label="Deny"
        question="Deny this call?" onYes=${decide(row, false)} />` },
    ]} />`}`;
}
