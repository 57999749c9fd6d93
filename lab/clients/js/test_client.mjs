// kafkajs or @platformatic/kafka behind lines of JSON: a command a line in, an answer a line out, until the input ends. The commands are those of
// lab/foreign_clients.py. Arguments: which client, the broker, the directory with node_modules.
// Weak spot: @platformatic/kafka consumes by its `fetch`, because its streams always join a group.
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import zlib from 'node:zlib'

const [which, bootstrap, directory] = process.argv.slice(2)
const load = createRequire(directory + '/')

const bytes = text => (text === null ? null : Buffer.from(text, 'base64'))
const text = buffer => (buffer === null || buffer === undefined ? null : Buffer.from(buffer).toString('base64'))

// The broker's error code, wherever in the tree of causes the client keeps it.
function errorCode (error) {
  if (!error || typeof error !== 'object') return undefined
  for (const code of [error.apiCode, error.code]) if (typeof code === 'number') return code
  for (const inner of [error.cause, error.originalError, ...(error.errors ?? [])]) {
    const code = errorCode(inner)
    if (code !== undefined) return code
  }
}

function kafkajs () {
  const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = load('kafkajs')
  const { lz4Compress, lz4Decompress } = load('@platformatic/wasm-utils')
  CompressionCodecs[CompressionTypes.Snappy] = load('kafkajs-snappy')
  CompressionCodecs[CompressionTypes.LZ4] = () => ({ compress: async encoder => lz4Compress(encoder.buffer), decompress: async buffer => lz4Decompress(buffer) })
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({ compress: async encoder => zlib.zstdCompressSync(encoder.buffer), decompress: async buffer => zlib.zstdDecompressSync(buffer) })
  const kafka = new Kafka({ clientId: 'golden', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 2 } })
  const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD }
  const producer = kafka.producer({ idempotent: false, allowAutoTopicCreation: false })
  const admin = kafka.admin()
  let connected
  const connect = () => (connected ??= Promise.all([producer.connect(), admin.connect()]))
  return {
    async produce ({ topic, codec, records }) {
      await connect()
      const messages = records.map(({ key, value, headers, timestamp }) => {
        // Headers that share a key are an array in kafkajs.
        const together = {}
        for (const [name, content] of headers) together[name] = name in together ? [].concat(together[name], [bytes(content)]) : bytes(content)
        return { key: bytes(key), value: bytes(value), partition: 0, headers: together, ...(timestamp === null ? {} : { timestamp: String(timestamp) }) }
      })
      await producer.send({ topic, acks: -1, compression: codecs[codec], messages })
      return {}
    },
    // As the only member of a group of its own: kafkajs consumes in groups only, and what is committed only.
    async fetch ({ topic, offset, count }) {
      const consumer = kafka.consumer({ groupId: `kafkajs-${topic}-${process.pid}`, allowAutoTopicCreation: false })
      const records = []
      await consumer.connect()
      await consumer.subscribe({ topics: [topic], fromBeginning: true })
      await new Promise((resolve, reject) => {
        setTimeout(resolve, 15000).unref()
        const eachMessage = async ({ message }) => {
          if (Number(message.offset) < offset || records.length >= count) return
          const headers = Object.entries(message.headers).flatMap(([name, content]) => [content].flat().map(one => [name, text(one)]))
          records.push({ offset: Number(message.offset), key: text(message.key), value: text(message.value), headers, timestamp: Number(message.timestamp), timestamp_type: 0 })
          if (records.length >= count) resolve()
        }
        consumer.run({ eachMessage }).catch(reject)
      })
      await consumer.disconnect()
      return { records }
    },
    async offset ({ topic, at }) {
      await connect()
      if (typeof at === 'number') return { offset: Number((await admin.fetchTopicOffsetsByTimestamp(topic, at))[0].offset) }
      const [{ low, high }] = await admin.fetchTopicOffsets(topic)
      return { offset: Number(at === 'earliest' ? low : high) }
    },
    async create ({ topic, config }) {
      await connect()
      const made = await admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: 1, configEntries: Object.entries(config).map(([name, value]) => ({ name, value })) }] })
      if (!made) throw Object.assign(new Error('already there'), { code: 36 }) // kafkajs swallows this error and answers false
      return {}
    },
    async delete ({ topic }) {
      await connect()
      await admin.deleteTopics({ topics: [topic] })
      return {}
    },
    async close () {
      if (connected) await Promise.all([producer.disconnect(), admin.disconnect()])
    }
  }
}

function platformatic () {
  const { Producer, Consumer, Admin } = load('@platformatic/kafka')
  const options = { clientId: 'golden', bootstrapBrokers: [bootstrap], retries: 1, timeout: 10000 }
  const producer = new Producer({ ...options, autocreateTopics: false })
  const consumer = new Consumer({ ...options, groupId: 'golden' })
  const admin = new Admin(options)
  const topicId = async topic => {
    const metadata = await consumer.metadata({ topics: [topic] })
    const found = metadata.topics.get(topic)
    return { id: found.id, node: found.partitions[0].leader }
  }
  return {
    async produce ({ topic, codec, records }) {
      const messages = records.map(({ key, value, headers, timestamp }) => ({
        topic,
        partition: 0,
        key: bytes(key) ?? undefined,
        value: bytes(value) ?? undefined,
        // Keys of this map are buffers, so that the same name can be there twice.
        headers: new Map(headers.map(([name, content]) => [Buffer.from(name), bytes(content)])),
        ...(timestamp === null ? {} : { timestamp: BigInt(timestamp) })
      }))
      await producer.send({ messages, acks: -1, compression: codec })
      return {}
    },
    async fetch ({ topic, offset, count }) {
      const { id, node } = await topicId(topic)
      const records = []
      let next = BigInt(offset)
      const deadline = Date.now() + 15000
      while (records.length < count && Date.now() < deadline) {
        const partitions = [{ partition: 0, currentLeaderEpoch: -1, fetchOffset: next, lastFetchedEpoch: -1, partitionMaxBytes: 8 << 20 }]
        const answer = await consumer.fetch({ node, maxWaitTime: 500, minBytes: 1, maxBytes: 16 << 20, topics: [{ topicId: id, partitions }] })
        for (const batch of answer.responses[0]?.partitions[0]?.records ?? []) {
          for (const record of batch.records) {
            const at = batch.firstOffset + BigInt(record.offsetDelta)
            if (at < next) continue
            next = at + 1n
            const isLogAppendTime = (batch.attributes & 8) !== 0
            records.push({
              offset: Number(at),
              key: text(record.key),
              value: text(record.value),
              headers: record.headers.map(([name, content]) => [name.toString(), text(content)]),
              timestamp: Number(isLogAppendTime ? batch.maxTimestamp : batch.firstTimestamp + record.timestampDelta),
              timestamp_type: isLogAppendTime ? 1 : 0
            })
          }
        }
      }
      return { records }
    },
    async offset ({ topic, at }) {
      const timestamp = typeof at === 'number' ? BigInt(at) : at === 'earliest' ? -2n : -1n
      return { offset: Number((await consumer.listOffsets({ topics: [topic], timestamp })).get(topic)[0]) }
    },
    async create ({ topic, config }) {
      await admin.createTopics({ topics: [topic], partitions: 1, replicas: 1, configs: Object.entries(config).map(([name, value]) => ({ name, value })) })
      return {}
    },
    async delete ({ topic }) {
      await admin.deleteTopics({ topics: [topic] })
      return {}
    },
    async close () {
      await Promise.all([producer.close(), consumer.close(true), admin.close()])
    }
  }
}

const client = { kafkajs, platformatic }[which]()
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  let answer
  try {
    answer = await client[command.do](command)
  } catch (error) {
    answer = { error_code: errorCode(error) ?? -1, error: String(error.stack ?? error) }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}
await client.close()
process.exit(0)
