// Sends each line of its standard input with one of the libraries that people log with, and writes it out again when the library was told that it is stored.
// Ends when its input has ended and all was told; fluent-logger forgets what was not answered in time, so for it: when all was told or given up.
// node told_sender.mjs LIBRARY HOST PORT MODULES_DIRECTORY
// LIBRARY: winston-elasticsearch, winston-loki, fluent-logger.
// Weak spots: winston-loki waits a minute after a failure, which nothing but a look inside shortens; fluent-logger throws inside a callback of its socket when
// its connection went meanwhile, which would end it.
import { createRequire } from "node:module";
import path from "node:path";
import readline from "node:readline";

const [library, host, port, modules] = process.argv.slice(2);
const require = createRequire(path.join(modules, "package.json"));
const PAUSE_MS = 20;
const waiting = new Set();

function tell(text) {
  if (waiting.delete(text)) console.log(text);
}

function winstonElasticsearch() {
  const { Client } = require("@elastic/elasticsearch");
  const { ElasticsearchTransport } = require("winston-elasticsearch");
  const client = new Client({ node: `http://${host}:${port}`, requestTimeout: 10000 });
  const bulk = client.bulk.bind(client);
  client.bulk = async (request) => {
    const answer = await bulk(request);
    const documents = request.body.filter((_, place) => place % 2);
    answer.items.forEach((item, place) => Object.values(item)[0].status < 300 && tell(documents[place].message));
    return answer;
  };
  return log(new ElasticsearchTransport({ client, indexPrefix: "app", flushInterval: PAUSE_MS, internalLogger: () => {} }));
}

function winstonLoki() {
  const LokiTransport = require("winston-loki");
  const transport = new LokiTransport({
    host: `http://${host}:${port}`, interval: PAUSE_MS / 1000, labels: { job: "shop" }, gracefulShutdown: false, timeout: 10000, onConnectionError: () => {},
  });
  const batcher = transport.batcher;
  batcher.circuitBreakerInterval = PAUSE_MS * 5;
  const send = batcher.sendBatchToLoki.bind(batcher);
  batcher.sendBatchToLoki = async (entry) => {
    const lines = batcher.batch.streams.flatMap((stream) => stream.entries.map(({ line }) => line.split(" ", 2).join(" ")));
    await send(entry);
    lines.forEach(tell);
  };
  return log(transport);
}

function log(transport) {
  const winston = require("winston");
  const logger = winston.createLogger({ transports: [transport] });
  transport.on("warning", () => {});
  transport.on("error", () => {});
  return (text) => logger.info(text);
}

function fluentLogger() {
  const fluent = require("fluent-logger");
  const internalLogger = { info() {}, error() {} };
  const options = { eventMode: "PackedForward", requireAckResponse: true, ackResponseTimeout: 1000, flushInterval: PAUSE_MS, reconnectInterval: PAUSE_MS };
  const sender = fluent.createFluentSender("npm", { host, port: Number(port), timeout: 3.0, internalLogger, ...options });
  sender.on("error", () => {});
  process.on("uncaughtException", () => {});
  return (text) => {
    const giveUp = setTimeout(() => waiting.delete(text), 3000);
    sender.emit("web", { message: text }, (error) => {
      clearTimeout(giveUp);
      if (error) waiting.delete(text);
      else tell(text);
    });
  };
}

const send = { "winston-elasticsearch": winstonElasticsearch, "winston-loki": winstonLoki, "fluent-logger": fluentLogger }[library]();
for await (const text of readline.createInterface({ input: process.stdin })) {
  waiting.add(text);
  send(text);
}
setInterval(() => waiting.size || process.exit(0), PAUSE_MS);
