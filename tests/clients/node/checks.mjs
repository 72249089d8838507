// Checks with names, as ../checks.py has them: `check(name, function)` registers one, `main(prepare)` runs them and prints
// `ok   NAME` or `FAIL NAME: WHY` for each. Exit status 1 if any failed.

import { parseArgs } from 'node:util';

const CHECKS = [];
// What times are multiplied by, for a machine that is busy with other things (--patience of run.py).
export const PATIENCE = Number(process.env.CLIENTS_PATIENCE || 1);
const MOST_SHOWN = 400;

export function check(name, body, seconds = 120) {
  CHECKS.push({ name, body, seconds });
}

export class Failed extends Error {}

export function expect(condition, what) {
  if (!condition) throw new Failed(what);
}

export function equal(got, expected, what) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(expected)];
  if (a !== b) throw new Failed(`${what} is ${a} instead of ${b}`);
}

/** Insists that the call fails with an error of this class; returns the error. */
export async function rejects(kind, call) {
  let got;
  try {
    got = await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Failed(`no ${kind.name}, but ${JSON.stringify(got)}`);
}

/** The address of another server than the script's own. */
export function otherServer(args, name) {
  expect(name in args.servers, `there is no server "${name}" (it did not start, or --server ${name}=URL is missing)`);
  return args.servers[name];
}

function readArguments() {
  const options = { server: { type: 'string', multiple: true, default: [] } };
  for (const name of ['base-url', 'pid', 'taper', 'model', 'work', 'ports', 'only']) options[name] = { type: 'string' };
  const { values } = parseArgs({ options });
  values.servers = Object.fromEntries(values.server.map((item) => item.split(/=(.*)/s).slice(0, 2)));
  return values;
}

function within(seconds, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Failed('the check ran out of time')), seconds * 1000 * PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export async function main(prepare) {
  const args = readArguments();
  const context = await prepare(args);
  let failed = 0;
  for (const { name, body, seconds } of CHECKS) {
    if (args.only && !new RegExp(args.only).test(name)) continue;
    let line;
    try {
      const figures = await within(seconds, body(context));
      line = figures ? `ok   ${name}: ${figures}` : `ok   ${name}`;
    } catch (error) {
      failed += 1;
      const kind = error instanceof Failed ? '' : `${error?.name ?? 'Error'}: `;
      line = `FAIL ${name}: ${kind}${error?.message ?? error}`.replace(/\s+/g, ' ').slice(0, MOST_SHOWN);
    }
    console.log(line);
  }
  // Sockets that clients keep open must not keep this program.
  process.exit(failed ? 1 : 0);
}
