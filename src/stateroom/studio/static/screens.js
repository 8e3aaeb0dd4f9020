/** The screens by their paths. A module's default export is the component, which gets the path's named parts. */

/** @type {Record<string, () => Promise<{default: (parameters: any) => any}>>} */
export const screens = {
  "/sessions": () => import("./screens/sessions.js"),
  "/sessions/:id": () => import("./screens/timeline.js"),
  "/sessions/:id/play": () => import("./screens/play.js"),
  "/sessions/:id/compare": () => import("./screens/compare.js"),
  "/runs/:run/sessions/:id": () => import("./screens/timeline.js"),
  "/runs/:run/sessions/:id/play": () => import("./screens/play.js"),
  "/runs/:run/sessions/:id/compare": () => import("./screens/compare.js"),
  "/runs": () => import("./screens/runs.js"),
  "/runs/:run": () => import("./screens/run.js"),
  "/runs/:run/rollouts/:line": () => import("./screens/rollout.js"),
  "/threads": () => import("./screens/threads.js"),
  "/threads/:id": () => import("./screens/threads.js"),
  "/store": () => import("./screens/store.js"),
  "/play": () => import("./screens/play.js"),
  "/inbox": () => import("./screens/inbox.js"),
};
