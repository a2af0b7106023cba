// Preloaded into the official suite: each of its time limits and pauses is as many times as long as
// PATIENCE says. It gives a call as little as 500 ms, in which a busy machine starts no process. Those
// below 5 s get no longer than that: some pass in full, such as while it waits for a third message.
const factor = Number(process.env.PATIENCE);
const ENOUGH = 5000;
const patient = (milliseconds) =>
  milliseconds < ENOUGH ? Math.min(milliseconds * factor, ENOUGH) : milliseconds * factor;
const { setTimeout: start } = globalThis;
globalThis.setTimeout = (run, milliseconds = 0, ...given) =>
  start(run, patient(milliseconds), ...given);
const signal = AbortSignal.timeout.bind(AbortSignal);
AbortSignal.timeout = (milliseconds) => signal(patient(milliseconds));
