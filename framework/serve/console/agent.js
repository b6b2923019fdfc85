// What the agent can do.

import { get } from "./api.js";
import { h, pre, visible } from "./dom.js";
import { T } from "./text.js";

export function agentView(app) {
  const list = h("div", { class: "capabilities" });
  const node = h("section", { class: "part side", testid: "agent", "aria-label": T.parts.agent }, h("h2", null, T.parts.agent), list);
  let begun = false;
  async function load() {
    const page = await get("/api/capabilities");
    const items = page.items ?? [];
    list.replaceChildren(...(items.length ? items.map(card) : [h("p", { class: "quiet" }, T.noCapabilities)]));
  }
  return { node, update: () => { if (!begun) { begun = true; load().catch(app.fail); } } };
}

function card(one) {
  const names = (list) => [].concat(list ?? []).map((item) => visible(typeof item === "string" ? item : item.type ?? item.name ?? JSON.stringify(item))).join(", ");
  const schema = one.parameters_schema ?? one.parameters;
  const facts = [[T.needs, names(one.requires)], [T.gives, names(one.provides)], [T.permission, one.permission]];
  return h("article", { class: "card" },
    h("h3", null, visible(one.name), " ", one.effect ? h("span", { class: "badge", "data-effect": one.effect }, T.effect[one.effect] ?? one.effect) : null, " ",
      one.requires_approval ? h("span", { class: "badge" }, T.approval) : null),
    h("p", null, visible(one.description ?? "")),
    h("dl", null, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", null, name), h("dd", null, visible(String(value)))])),
    schema && Object.keys(schema.properties ?? schema).length ? h("details", null, h("summary", null, T.parameters), pre(schema)) : null);
}
