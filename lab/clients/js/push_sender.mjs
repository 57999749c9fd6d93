// Sends so many messages with one of the libraries that people log with, and ends when it was told that they arrived (or, over UDP, when they are out).
// node push_sender.mjs LIBRARY HOST PORT COUNT MODULES_DIRECTORY
// LIBRARY: winston-elasticsearch, winston-loki-json, winston-loki-protobuf, gelf-pro-udp, gelf-pro-tcp. Says nothing when all went well.
import { createRequire } from "node:module";
import path from "node:path";

const [library, host, port, count, modules] = process.argv.slice(2);
const require = createRequire(path.join(modules, "package.json"));

async function winstonElasticsearch() {
  const winston = require("winston");
  const { ElasticsearchTransport } = require("winston-elasticsearch");
  const transport = new ElasticsearchTransport({ clientOpts: { node: `http://${host}:${port}` }, indexPrefix: "app", flushInterval: 50 });
  const logger = winston.createLogger({ transports: [transport] });
  logger.on("error", fail);
  transport.on("warning", fail);
  for (let number = 0; number < count; number++) logger.log(number % 2 ? "error" : "info", `${library} ${number}`, { number });
  await new Promise((resolve) => setTimeout(resolve, 10)); // it takes entries in microtasks of its own
  await transport.flush();
}

async function winstonLoki(json) {
  const winston = require("winston");
  const LokiTransport = require("winston-loki");
  const transport = new LokiTransport({ host: `http://${host}:${port}`, json, interval: 0.05, labels: { job: "shop" }, gracefulShutdown: false, onConnectionError: fail });
  const logger = winston.createLogger({ transports: [transport] });
  for (let number = 0; number < count; number++) logger.log(number % 2 ? "error" : "info", `${library} ${number}`, { labels: { part: "cart" } });
  await transport.flush();
}

async function gelfPro(protocol) {
  const gelf = require("gelf-pro");
  const options = protocol === "udp" ? { protocol: "udp4", host, port: Number(port) } : { host, port: Number(port) };
  gelf.setConfig({ adapterName: protocol, adapterOptions: options });
  const send = (number) =>
    new Promise((resolve, reject) => {
      const extra = { number, full_message: "long ".repeat(number % 10 ? 1 : 20000) + Math.random() };
      gelf.message(`${library} ${number}`, number % 2 ? 3 : 6, extra, (error) => (error ? reject(error) : resolve()));
    });
  for (let number = 0; number < count; number++) await send(number);
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

const libraries = {
  "winston-elasticsearch": winstonElasticsearch,
  "winston-loki-json": () => winstonLoki(true),
  "winston-loki-protobuf": () => winstonLoki(false),
  "gelf-pro-udp": () => gelfPro("udp"),
  "gelf-pro-tcp": () => gelfPro("tcp"),
};
libraries[library]().then(() => process.exit(0), fail);
