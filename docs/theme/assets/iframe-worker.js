/* Browsers start no worker from a file:// address. There, the search's worker runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          script.src = source;
          script.onload = resolve;
          script.onerror = reject;
          inside.document.head.append(script);
        });
      inside.importScripts = (...sources) => Promise.all(sources.map(load));
      inside.postMessage = (data) =>
        setTimeout(() => {
          const event = new MessageEvent("message", { data });
          this.dispatchEvent(event);
          if (this.onmessage) this.onmessage(event);
        });
      this.loaded = load(url);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.loaded.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}

/* The search would leave out what stands behind a minus sign. An option such as --beam-size is searched as a phrase. */
window.Worker = class extends window.Worker {
  postMessage(message) {
    const isQuery = message.type === 2;
    super.postMessage(isQuery ? { ...message, data: message.data.replace(/(^|\s)--?(\w[\w-]*)/g, '$1"$2"') } : message);
  }
};
