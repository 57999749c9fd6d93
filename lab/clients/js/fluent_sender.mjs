// fluent-logger: sends records one after the other and says what became of them: a line of JSON, {"sent": count, "errors": [text…]}.
// Arguments: port, the directory with node_modules, options of the logger as JSON, how many records.
// Weak spot: a record whose callback the logger forgets (it does when a handshake fails) is seen only because nothing is left to wait for.
import { createRequire } from 'node:module'

const [port, directory, options, count] = process.argv.slice(2)
const fluent = createRequire(directory + '/')('fluent-logger')
const silent = { info () {}, error () {} }
const sender = fluent.createFluentSender('npm', { host: '127.0.0.1', port: Number(port), timeout: 3.0, internalLogger: silent, ...JSON.parse(options) })
const errors = []
let sent = 0
let answered = 0
sender.on('error', error => errors.push(String(error)))
const say = () => { console.log(JSON.stringify({ sent, errors })); process.exit() }
process.on('beforeExit', say)
setTimeout(() => { errors.push('not answered in time'); say() }, 15000).unref()
for (let number = 0; number < Number(count); number++) {
  sender.emit('web', { message: `line ${number}`, level: 'warn', number, nested: { ok: true } }, error => {
    if (!error) sent++
    if (++answered === Number(count)) sender.end(null, null, say)
  })
}
