// Node refuses all addresses but AGENTMEM_URL's, and ends with an error where another one was tried: node --import.
import net from "node:net";

const { hostname, port } = new URL(process.env.AGENTMEM_URL);
const connect = net.Socket.prototype.connect;

net.Socket.prototype.connect = function (...given) {
  const first = Array.isArray(given[0]) ? given[0][0] : given[0];
  const asked = typeof first === "object" ? first : { port: first, host: given[1] };
  if (asked.host !== hostname || String(asked.port) !== port) {
    console.error(`${asked.host}:${asked.port} is not the gateway`);
    process.exitCode = 3;
    process.on("exit", () => (process.exitCode = 3));
    throw new Error("not the gateway");
  }
  return connect.apply(this, given);
};
