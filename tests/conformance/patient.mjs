// Preloaded into the official suite: each of its time limits and pauses is as many times as long as
// PATIENCE says. It gives a call as little as 500 ms, in which a busy machine starts no process.
const factor = Number(process.env.PATIENCE);
const { setTimeout: start } = globalThis;
globalThis.setTimeout = (run, milliseconds = 0, ...given) =>
  start(run, milliseconds * factor, ...given);
const signal = AbortSignal.timeout.bind(AbortSignal);
AbortSignal.timeout = (milliseconds) => signal(milliseconds * factor);
