// Requests to the server. Every failure becomes an error whose message can be shown.

const wasLeft = error => error.name === "AbortError";

async function ask(address, message, {key, words, signal}) {
  const headers = {"Content-Type": "application/json", ...(key ? {Authorization: `Bearer ${key}`} : {})};
  let response;
  try {
    response = await fetch(address, {method: "POST", headers, body: JSON.stringify(message), signal});
  } catch (error) {
    throw wasLeft(error) ? error : new Error(words.noServer);
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Error(said.error || words.strange(response.status));
}

// Yields the names and data of a response's server-sent events as they arrive.
async function* eventsOf(response, words) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", last = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw wasLeft(error) ? error : new Error(words.noServer);
    }
    if (part.done) break;
    const blocks = (rest + part.value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const [name, data] = block.split("\n").map(line => line.slice(line.indexOf(": ") + 2));
      last = name;
      yield [name, JSON.parse(data)];
    }
  }
  if (last !== "result" && last !== "error") throw new Error(words.noServer);
}

// Translates with streaming: calls `onprogress` for each progress event and returns the result.
async function translation(message, {onprogress, ...asked}) {
  const response = await ask("translate", {...message, stream: true}, asked);
  for await (const [name, data] of eventsOf(response, asked.words)) {
    if (name === "result") return data;
    if (name === "error") throw new Error(data.error);
    onprogress(data);
  }
}
