// Calls that need a person's approval.
import { Badge, Empty, Failure, Confirm, Table, ago, html, post, useFetched } from "./parts.js";

export function Approvals({ live, now }) {
  const { data, error } = useFetched("api/approvals", live.events.find((event) => event.kind === "approval")?.number ?? 0);
  const decide = (row, approve) => () => post("api/decide", { approval: row.id, approve });
  return html`<h1>Calls that need approval</h1><${Failure} error=${error} />
    ${data && !data.approver && html`<p class="quiet">To approve or deny, sign in with a credential that has the role approver.</p>`}
    ${data && !data.items.length && html`<${Empty}>No call waits for approval.<//>`}
    ${data && data.items.length > 0 && html`<${Table} label="Approvals" rows=${data.items} rowKey=${(row) => row.id} columns=${[
      { title: "Asked", cell: (row) => ago(row.asked_at, now) },
      { title: "State", cell: (row) => html`<${Badge} text=${row.state} />` },
      { title: "Tenant", cell: (row) => row.tenant },
      { title: "Agent", cell: (row) => row.agent || "–" },
      { title: "Tool", cell: (row) => html`<span class="name">${row.server}:${row.tool}</span>` },
      { title: "Arguments", cell: (row) => html`<span class="words">${row.arguments}</span>` },
      { title: "Asked by", cell: (row) => row.asked_by },
      { title: "Decided by", cell: (row) => row.decided_by || "–" },
      { title: "", cell: (row) => row.state === "waiting" && data.approver && html`<${Confirm} label="Approve"
        question="Let this call run once?" onYes=${decide(row, true)} />` },
      { title: "", cell: (row) => row.state === "waiting" && data.approver && html`<${Confirm} label="Deny"
        question="Deny this call?" onYes=${decide(row, false)} />` },
    ]} />`}`;
}
